"""Trains a job with pretended workers, which take turns in one process on one device."""
