"""The REST api under `/api/v1`: one router a file."""
