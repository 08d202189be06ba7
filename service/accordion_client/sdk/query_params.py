"""Query parameters of requests for lists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def format_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are given, with times as text."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in params.items()
        if value not in (None, [])
    }
