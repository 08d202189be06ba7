"""Query parameters of requests for lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any


def format_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are given, with times as text."""
    texts = {name: _format_value(value) for name, value in params.items()}
    return {name: text for name, text in texts.items() if text not in (None, [])}


def format_filters(keywords: type, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a list for filters, which are keys of the typed dictionary
    `keywords`.

    Raises:
        TypeError: a filter is no key of it.
    """
    known = keywords.__annotations__
    if unknown := filters.keys() - known.keys():
        raise TypeError(f"there is no filter {min(unknown)!r}; there are {', '.join(known)}")
    return format_params(filters)


def _format_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, Collection) and not isinstance(value, str) else value
