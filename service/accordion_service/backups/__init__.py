"""Backups of a service, and its move to another database."""
