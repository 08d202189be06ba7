"""Replaces secrets in text that leaves a process: values in output and in messages of records, and
logins in URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

Message = TypeVar("Message", bound="BaseModel")

MASK = "***"
MIN_LENGTH = 6
"""Shorter values are not replaced: they would match ordinary words and numbers."""
_URL_LOGIN = re.compile(r"(?<=://)[^/\s]+@")


class SecretMask:
    """Replaces values; each line of a value with several lines is replaced by itself.

    Args:
        values: values of secrets; those shorter than `MIN_LENGTH` characters are ignored.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        self._values = [line for line in lines if len(line) >= MIN_LENGTH]
        self.longest = max(map(len, self._values), default=0)
        """Characters of the longest line of a value; 0 without values."""

    def apply(self, text: str) -> str:
        """Return the text with `MASK` in place of each value, or of several that overlap."""
        # One search per value: an expression with all of them takes time with the product of their
        # lengths and the text's, where they begin alike.
        spans = sorted(span for value in self._values for span in _find_spans(value, text))
        parts, end = [], 0
        for start, stop in spans:
            if start >= end:
                parts += [text[end:start], MASK]
            end = max(end, stop)
        return "".join((*parts, text[end:]))

    def apply_to_record(self, record: Message) -> Message:
        """Return the record with a masked `message`, if it has one."""
        message = getattr(record, "message", None)
        if not self._values or message is None:
            return record
        return record.model_copy(update={"message": self.apply(message)})


def _find_spans(value: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(value)
    while start >= 0:
        yield start, start + len(value)
        start = text.find(value, start + len(value))


def mask_url_logins(text: str) -> str:
    """Return the text with `MASK` in place of user name and password in each URL."""
    return _URL_LOGIN.sub(f"{MASK}@", text)
