"""Runs one training job on Ray: supervisor, workers, the Accordion actor."""
