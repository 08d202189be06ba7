"""Overrides: their states, changes and checks."""
