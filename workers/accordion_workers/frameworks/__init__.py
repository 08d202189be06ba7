"""Scripts of other frameworks as jobs: their loops, with the session's batches, steps and state."""
