"""Reads that change nothing."""
