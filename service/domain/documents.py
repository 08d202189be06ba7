"""Single values of a stored document, each with a default; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value", bound=str | float)


def value_at(document: Any, place: str, default: Value) -> Any:
    """The value at a place such as `training.epochs`; the default where it is missing or of another kind."""
    for name in place.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    kinds = (str,) if isinstance(default, str) else (int, float)
    return document if isinstance(document, kinds) and not isinstance(document, bool) else default
