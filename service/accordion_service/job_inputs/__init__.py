"""What a job needs before it runs: code, packages, environment, checkpoints, a place to queue."""
