"""How texts and JSON documents are written and read: no text that a database refuses, no document that fails a page."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import structlog
from sqlalchemy import String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from workers.plain_text import clean_text, clean_texts

_REFUSED_ESCAPE = re.compile(r"\\u(0000|[dD][89a-fA-F])")
"""How JSON in ASCII writes NUL and the halves of characters, the two halves of a whole one included."""
_NUMBER = "$number"
"""Key of the object that stands for a number which is not finite."""
_NUMBERS = ("nan", "inf", "-inf")
_log = structlog.get_logger()


class PlainText(TypeDecorator[str]):
    """A text column; NUL and lone surrogates are replaced on the way in, in conditions too."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Clean what is written."""
        return value if value is None else clean_text(value)


class LongPlainText(PlainText):
    """A text column of any length."""

    impl = Text
    cache_ok = True


def dump_document(value: Any) -> str:
    """A JSON column's document, its texts cleaned.

    Numbers that JSON does not know, such as NaN, are objects there: PostgreSQL refuses Python's way to write them.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        value = _mark_numbers(value)
        text = json.dumps(value)
    return json.dumps(clean_texts(value)) if _REFUSED_ESCAPE.search(text) else text


def _mark_numbers(value: Any) -> Any:
    """Replace numbers that are not finite by objects that name them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: repr(value)}
    if isinstance(value, dict):
        return {key: _mark_numbers(item) for key, item in value.items()}
    return [_mark_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def _read_marked(found: dict[str, Any]) -> Any:
    return float(found[_NUMBER]) if found.keys() == {_NUMBER} and found[_NUMBER] in _NUMBERS else found


def load_document(text: str | bytes) -> Any:
    """A JSON column's document as it was stored, its texts cleaned; an empty one where it is no JSON."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    try:
        value = json.loads(text, object_hook=_read_marked)
    except ValueError as error:
        _log.error("a stored document is no JSON", error=str(error), begin=text[:80])
        return {}
    return clean_texts(value) if _REFUSED_ESCAPE.search(text) else value
