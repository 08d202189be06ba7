"""Text that every file, database and JSON reader takes: Unicode without NUL and without lone
surrogates.

Other text in a request is refused, with its place (`check_input`). Text from a job's own code is
cleaned (`clean_texts`), since no user could correct it. A lone surrogate is what Python makes of a
byte that is no UTF-8, as in file names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

REPLACEMENT = "\ufffd"
"""Unicode's replacement character."""
_REFUSED = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAX_SHOWN = 60
"""Characters of a refused text that the message shows."""
_MAX_VALUES = 10_000
"""Most values of a body, each key and each item; the largest that makes sense has about 1,000."""
_MAX_DEPTH = 32
"""Most levels of a body; the deepest that makes sense has about 8."""


def clean_text(text: str) -> str:
    """Replace each NUL and each lone surrogate by `REPLACEMENT`."""
    return _REFUSED.sub(REPLACEMENT, text)


def clean_for_terminal(text: str) -> str:
    """Replace each control character but tab and line feed, with which a text could move the cursor
    or change the title of a terminal, by `REPLACEMENT`.
    """
    return _CONTROL.sub(REPLACEMENT, text)


def clean_texts(value: Any) -> Any:
    """Clean all texts in a value, through lists, tuples, mappings with their keys, and
    dataclasses.
    """
    match value:
        case str():
            return clean_text(value)
        case Mapping():
            return {clean_texts(key): clean_texts(content) for key, content in value.items()}
        case list():
            return [clean_texts(content) for content in value]
        case tuple() if type(value) is tuple:
            return tuple(clean_texts(content) for content in value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (field.name for field in dataclasses.fields(value))
            return dataclasses.replace(
                value, **{name: clean_texts(getattr(value, name)) for name in fields}
            )
        case _:
            return value


def describe_refused_text(text: str) -> str | None:
    """Return why a text is refused, in one sentence; None if it is accepted."""
    found = _REFUSED.search(text)
    if found is None:
        return None
    shown = repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
    if found[0] == "\0":
        return (
            f"{shown} is refused: it holds a NUL character, which no database takes; leave it out"
        )
    return (
        f"{shown} is not Unicode text: it holds half of a character (U+{ord(found[0]):04X}); send"
        " the text as UTF-8"
    )


def check_input(data: Any) -> Any:
    """Return the data as they are; for `model_validator(mode="before")`.

    Raises:
        ValidationError: they have too many values or levels, or a text or a key in them is not
            taken; each with its place.
    """
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{why}", {"why": why}), loc=path, input=None
        )
        for path, why in _refused_sizes(data) or _refused_texts(data, ())
    ]
    if errors:
        raise ValidationError.from_exception_data("input", errors)
    return data


def _refused_sizes(data: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """Return what is wrong with the number of values and levels, found without recursion."""
    level, num_values = [data], 0
    for _ in range(_MAX_DEPTH + 1):
        inner = chain.from_iterable(map(_list_children, level))
        level = list(islice(inner, _MAX_VALUES + 1 - num_values))
        num_values += len(level)
        if num_values > _MAX_VALUES:
            return [((), f"the body has more than {_MAX_VALUES} values; send less")]
        if not level:
            return []
    return [((), f"the body is nested more than {_MAX_DEPTH} levels deep; send less")]


def _list_children(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list() | tuple():
            return value
        case _:
            return ()


def _refused_texts(
    value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    match value:
        case str():
            why = describe_refused_text(value)
            if why is not None:
                yield path, why
        case dict():
            for key, content in value.items():
                below = (*path, clean_text(str(key)))
                yield from _refused_texts(key, below)
                yield from _refused_texts(content, below)
        case list() | tuple():
            for index, content in enumerate(value):
                yield from _refused_texts(content, (*path, index))
