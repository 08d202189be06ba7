"""Read values of stored documents, which an older or newer version may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value", bound=str | float)


def value_at(document: Any, place: str, default: Value) -> Any:
    """Value at a path such as `training.epochs`; the default if it is missing or of another
    type.
    """
    found = _find(document, place)
    return found if _has_type(found, default) else default


def entries_at(document: Any, place: str, example: Value) -> dict[str, Any]:
    """Entries of the mapping at a path, without those whose values have another type than the
    example; none if there is no mapping.
    """
    found = _find(document, place)
    entries = found.items() if isinstance(found, Mapping) else ()
    return {str(name): value for name, value in entries if _has_type(value, example)}


def _find(document: Any, place: str) -> Any:
    for name in place.split("."):
        # The type is asked first: an abstract class takes ten times as long.
        is_mapping = type(document) is dict or isinstance(document, Mapping)
        document = document.get(name) if is_mapping else None
    return document


def _has_type(value: Any, example: str | float) -> bool:
    kinds = (str,) if isinstance(example, str) else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)
