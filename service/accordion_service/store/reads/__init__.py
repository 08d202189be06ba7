"""Reads that change nothing: each reads one snapshot; rows are detached and stay usable."""
