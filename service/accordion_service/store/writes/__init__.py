"""Requests of users and of housekeeping, each in one transaction."""
