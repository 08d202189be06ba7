"""Words for values that a request gives and the models reject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.api.account_schemas import USER_NAME
from service.api.quota_schemas import LABEL, USER_OR_ANY
from service.api.schemas import PLAIN, PLAIN_LINES
from workers.contract import LABEL_PATTERN

_MAX_SHOWN = 80
"""Longest value to repeat, in characters."""
_TIME = "2027-01-31T22:00:00+01:00"
_BY_TYPE: Mapping[str, str] = {
    "timezone_aware": f"has no time zone; give one, as in {_TIME}, or end it with Z for UTC",
    "datetime_parsing": f"is no time; give date, time and time zone, as in {_TIME}",
    "datetime_from_date_parsing": f"is no time; give date, time and time zone, as in {_TIME}",
}
"""What is wrong and what to give, by type of the validation error."""
_NO_CONTROL_CHARACTERS = "has control characters; leave them out"
_BY_PATTERN: Mapping[str, str] = {
    LABEL: "is no label; give it as key:value, such as team:vision",
    LABEL_PATTERN: "is no name: letters, digits and ._/-, the first and the last of them no sign",
    USER_NAME: "is no name of a user; it has up to 63 lower-case letters, digits and ._-",
    USER_OR_ANY: "is no name of a user: up to 63 lower-case letters, digits and ._-, or * for any",
    PLAIN: _NO_CONTROL_CHARACTERS,
    PLAIN_LINES: _NO_CONTROL_CHARACTERS,
}
"""What is wrong and what to give, by the pattern that a text does not match."""


def describe_rejected(item: Mapping[str, Any]) -> str:
    """Describe one validation error about a value: the value, what is wrong, what to give."""
    message = str(item["msg"]).removeprefix("Value error, ")
    value = repr(item.get("input"))
    if len(value) > _MAX_SHOWN:
        value = f"{value[:_MAX_SHOWN]}..."
    if item["type"] == "value_error":
        return message
    known = _BY_TYPE.get(item["type"]) or _BY_PATTERN.get(item.get("ctx", {}).get("pattern", ""))
    return (
        f"{value} {known}" if known else f"{value} is rejected: {message[:1].lower()}{message[1:]}"
    )
