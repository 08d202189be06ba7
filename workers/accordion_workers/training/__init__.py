"""The training loop of one worker, for built-in tasks and for user scripts; needs no Ray."""
