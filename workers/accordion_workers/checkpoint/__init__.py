"""Checkpoints in a storage: layout, lineage, and saving beside training."""
