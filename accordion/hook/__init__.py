"""The hook of DistributedDataParallel, and what it plans and checks."""
