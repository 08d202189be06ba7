"""Packages of others that this installation lacks."""

from __future__ import annotations


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the package of others that is not installed; empty if a module of ours is missing."""
    name = (error.name or "").partition(".")[0]
    return "" if name.startswith("accordion") else name
