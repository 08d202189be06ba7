"""`attach` and the session of a training script."""
