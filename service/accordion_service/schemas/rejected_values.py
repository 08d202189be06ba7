"""Describes values of a request that the models reject."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accordion_service.domain.access import USER_NAME
from accordion_service.domain.jobs.statuses import ID_PREFIX
from accordion_service.domain.tokens import TOKEN_ID
from accordion_service.schemas.jobs import PLAIN, PLAIN_LINES
from accordion_service.schemas.quotas import LABEL, USER_OR_ANY
from accordion_service.schemas.webhooks import WEBHOOK_NAME
from accordion_workers.records.contract import (
    CHECKPOINT_NAME_PATTERN,
    ENV_NAME_PATTERN,
    JOB_ID_PATTERN,
    SECRET_NAME_PATTERN,
)
from accordion_workers.spec.patterns import (
    DATA_NAME_PATTERN,
    NODE_LABEL_NAME_PATTERN,
    NODE_SELECTOR_PATTERN,
    RESOURCE_NAME_PATTERN,
    SHA256_PATTERN,
    URL_PATTERN,
    WANDB_NAME_PATTERN,
)
from accordion_workers.spec.types import LABEL_PATTERN

_MAX_SHOWN = 80
"""Longest value to repeat, in characters."""
_NO_LIST = frozenset({"list_type", "tuple_type"})
"""Types of validation errors about a value where a list belongs."""
_TEXT_MEMBERS = frozenset({"str", "constrained-str"})
"""Names of the text among the members of a union, in the place of a validation error."""
_TIME = "2027-01-31T22:00:00+01:00"
_BY_TYPE: Mapping[str, str] = {
    "timezone_aware": f"has no time zone; give one, as in {_TIME}, or end it with Z for UTC",
    "datetime_parsing": f"is not a time; give date, time and time zone, as in {_TIME}",
    "datetime_from_date_parsing": f"is not a time; give date, time and time zone, as in {_TIME}",
}
"""What is wrong and what to give, by type of the validation error."""
_LISTS: Mapping[str, str] = {
    "at": "epochs, such as [30, 60]",
    "loggers": "loggers, such as [{kind: tensorboard}]",
    "pip": "requirements, such as [einops==0.8.1]",
}
"""What a list has, by its name, with an example."""
_ANY_LIST = "values, such as [first, second]"
_NO_CONTROL_CHARACTERS = "has control characters; leave them out"
_BY_PATTERN: Mapping[str, str] = {
    SECRET_NAME_PATTERN: (
        "is not the name of a secret; use letters, digits and ._-, and start and end with a letter"
        " or digit"
    ),
    ENV_NAME_PATTERN: (
        "is not the name of a variable; use letters, digits and _, and start with a letter or _"
    ),
    WEBHOOK_NAME: (
        "is not the name of a webhook; use lower-case letters, digits and ._-, and start and end"
        " with a letter or digit"
    ),
    TOKEN_ID: "is not the ID of a token; 'accordion token list' shows IDs",
    ID_PREFIX: "is not the start of a job ID, which has digits, the letters a to f and -",
    JOB_ID_PATTERN: (
        "is not the ID of a job; 'accordion show' prints the ID of a job with that name, and"
        " 'accordion submit' takes the name"
    ),
    CHECKPOINT_NAME_PATTERN: "is not the name of a checkpoint; 'accordion show' lists them",
    LABEL: "is not a label; give it as key:value, such as team:vision",
    LABEL_PATTERN: (
        "is not allowed; use letters, digits and ._/-, and start and end with a letter or digit"
    ),
    DATA_NAME_PATTERN: (
        "is not the name of data; use lower-case letters, digits and _, start with a letter and end"
        " with a letter or digit"
    ),
    RESOURCE_NAME_PATTERN: (
        "is not the name of a resource; use letters, digits and ._:-, and start with a letter or _"
    ),
    NODE_LABEL_NAME_PATTERN: (
        "is not the name of a node label, such as ray.io/accelerator-type; use up to 63 letters,"
        " digits and ._-, after a prefix and / if needed; each part starts and ends with a letter"
        " or digit"
    ),
    NODE_SELECTOR_PATTERN: (
        'is not the value of a node label; give a value such as H100, "in(H100,A100)" for one of'
        ' several, or "!H100" or "!in(H100,A100)" for none of them; each has up to 63 letters,'
        " digits and ._-, and starts and ends with a letter or digit"
    ),
    WANDB_NAME_PATTERN: "is not a name in Weights & Biases; use letters, digits and ._-",
    URL_PATTERN: "is not a URL that starts with http:// or https://",
    SHA256_PATTERN: (
        "is not the SHA-256 of uploaded code, which has 64 digits and letters a to f; 'accordion"
        " submit --code FOLDER' uploads code and fills it in"
    ),
    USER_NAME: "is not a user name, which has up to 63 lower-case letters, digits and ._@-",
    USER_OR_ANY: "is not a user name, which has up to 63 lower-case letters, digits and ._@-, or *",
    PLAIN: _NO_CONTROL_CHARACTERS,
    PLAIN_LINES: _NO_CONTROL_CHARACTERS,
}
"""What is wrong and what to give, by the pattern that a text does not match."""


def describe_rejected(item: Mapping[str, Any]) -> str:
    """Describe one validation error about a value: the value, what is wrong, what to give."""
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return message
    value = repr(item.get("input"))
    if item["type"] in _NO_LIST:
        place = str(item["loc"][-1]) if item["loc"] else ""
        shown = value if len(value) <= _MAX_SHOWN else "the value"
        return f"{shown} is not a list; give a list of {_LISTS.get(place, _ANY_LIST)}"
    if item["type"] == "string_type" and _is_bare_scalar(item):
        given = json.dumps(item["input"])
        return f'{given} is not text; put it in quotes: "{given}"'
    known = _BY_TYPE.get(item["type"]) or _BY_PATTERN.get(item.get("ctx", {}).get("pattern", ""))
    if len(value) > _MAX_SHOWN:
        return f"the value {known}" if known else message
    return f"{value} {known or f'is rejected: {message[:1].lower()}{message[1:]}'}"


def _is_bare_scalar(item: Mapping[str, Any]) -> bool:
    """Return whether a number, true or false was given where only text belongs; the place of an
    error of a union ends with the name of the member.
    """
    is_member = not _TEXT_MEMBERS.isdisjoint(item["loc"][-1:])
    return isinstance(item.get("input"), int | float) and not is_member


def describe_hidden(item: Mapping[str, Any]) -> str:
    """Describe one validation error about a value that no response may show."""
    message = str(item["msg"])
    # pydantic's own messages do not quote the value; ours may.
    if not item["type"].startswith("string_"):
        return "the value is refused, and not shown because it is secret; give text without NUL"
    return f"the value is rejected: {message[:1].lower()}{message[1:]}"
