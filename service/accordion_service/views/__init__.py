"""Rows as people and programs read them: bodies and Prometheus samples."""
