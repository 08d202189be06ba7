"""The specification of a job, one module per part; loads neither ray nor torch."""
