"""Query parameters of requests for lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel


def format_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are given, with times as text."""
    texts = {name: _format_value(value) for name, value in params.items()}
    return {name: text for name, text in texts.items() if text not in (None, [])}


def format_filters(query: type[BaseModel], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a list for filters, which are fields of `query`.

    Raises:
        TypeError: a filter is no field.
    """
    fields = query.model_fields
    if unknown := filters.keys() - fields.keys():
        raise TypeError(f"there is no filter {min(unknown)!r}; there are {', '.join(fields)}")
    return format_params({fields[name].alias or name: value for name, value in filters.items()})


def _format_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, Collection) and not isinstance(value, str) else value
