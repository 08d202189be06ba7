"""Imports of people's own code by names that our packages had before the first release."""

from __future__ import annotations

from accordion_workers.common.errors import CodeError

_NOW = {
    "service": "`from accordion_client import connect`",
    "workers": "`from accordion_workers import session`, or TensorData",
}


def explain_moved_import(error: BaseException) -> CodeError | None:
    """Say what to import in place of a module that is missing; None for any other error."""
    name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    now = _NOW.get(name.partition(".")[0])
    if now is None:
        return None
    return CodeError(f"there is no module {name!r}; what Accordion had there is now {now}")


__all__ = ["explain_moved_import"]
