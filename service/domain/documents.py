"""Read single values of stored documents, each with a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value", bound=str | float)


def value_at(document: Any, place: str, default: Value) -> Any:
    """Value at a path such as `training.epochs`; the default if it is missing or of another
    type.
    """
    for name in place.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    kinds = (str,) if isinstance(default, str) else (int, float)
    return document if isinstance(document, kinds) and not isinstance(document, bool) else default
