"""Packages of others that this installation lacks."""

from __future__ import annotations

from importlib.util import find_spec


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the package of others that is not installed; empty if a module of ours is missing."""
    name = (error.name or "").partition(".")[0]
    return "" if name.startswith("accordion") else name


def check_packages(reason: str, *names: str, extra: str) -> None:
    """Check that packages of an extra are installed, before anything is done.

    Raises:
        SettingsError: one is not; the message begins with the reason for which it is needed.
    """
    from accordion_service.errors import SettingsError

    for name in names:
        if find_spec(name) is None:
            raise SettingsError(f"{reason} needs {name}; pip install 'accordion-train[{extra}]'")
