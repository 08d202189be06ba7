"""Column types that clean texts and tolerate unreadable JSON, and the columns of lists."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import structlog
from sqlalchemy import String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from accordion_workers.common.plain_text import clean_text, clean_texts

LISTED_COLUMNS = (
    *("archived", "created_at", "id", "kind", "owner", "name", "reason", "desired", "priority"),
    *("workers", "task", "method", "policy", "cloned_from", "started_at", "ended_at"),
)
"""Columns by which lists of jobs are ordered and filtered, except the status."""
_REFUSED_ESCAPE = re.compile(r"\\u(0000|[dD][89a-fA-F])")
"""JSON escapes of NUL and of surrogates, including valid surrogate pairs."""
_NUMBER = "$number"
"""Key of the object that represents a non-finite number."""
_NUMBERS = ("nan", "inf", "-inf")
_STRICT_JSON = json.JSONEncoder(allow_nan=False)
_log = structlog.get_logger()


class PlainText(TypeDecorator[str]):
    """A text column; NUL and lone surrogates are replaced in stored values and in conditions."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Replace characters that databases reject."""
        return value if value is None else clean_text(value)


class LongPlainText(PlainText):
    """A text column of any length."""

    impl = Text
    cache_ok = True


def dump_document(value: Any) -> str:
    """Serialize a document for a JSON column, with cleaned texts.

    Non-finite numbers are stored as objects: PostgreSQL rejects Python's notation of them.
    """
    try:
        text = _STRICT_JSON.encode(value)
    except ValueError:
        value = _mark_numbers(value)
        text = json.dumps(value)
    return json.dumps(clean_texts(value)) if _REFUSED_ESCAPE.search(text) else text


def _mark_numbers(value: Any) -> Any:
    """Replace non-finite numbers by objects that name them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: repr(value)}
    if isinstance(value, dict):
        return {key: _mark_numbers(item) for key, item in value.items()}
    return [_mark_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def _read_marked(found: dict[str, Any]) -> Any:
    return (
        float(found[_NUMBER]) if found.keys() == {_NUMBER} and found[_NUMBER] in _NUMBERS else found
    )


def load_document(text: str | bytes) -> Any:
    """Parse the document of a JSON column, with cleaned texts; an empty one if it is not JSON."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    try:
        # Calling back for every object takes as long again as parsing.
        value = json.loads(text, object_hook=_read_marked if _NUMBER in text else None)
    except ValueError as error:
        _log.error("a stored document is not JSON", error=str(error), begin=text[:80])
        return {}
    return clean_texts(value) if _REFUSED_ESCAPE.search(text) else value
