"""Replaces secrets in text that leaves a process: values in output and in messages of records, and
logins in URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
        # The longest first: a value may begin with another one.
        kept = sorted((line for line in lines if len(line) >= MIN_LENGTH), key=len, reverse=True)
        self.longest = max(map(len, kept), default=0)
        """Characters of the longest line of a value; 0 without values."""
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def apply(self, text: str) -> str:
        """Return the text with `MASK` in place of each value."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def apply_to_record(self, record: Message) -> Message:
        """Return the record with a masked `message`, if it has one."""
        message = getattr(record, "message", None)
        if self._pattern is None or message is None:
            return record
        return record.model_copy(update={"message": self.apply(message)})


def mask_url_logins(text: str) -> str:
    """Return the text with `MASK` in place of user name and password in each URL."""
    return _URL_LOGIN.sub(f"{MASK}@", text)
