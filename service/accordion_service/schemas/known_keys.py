"""Suggests keys for error messages about unknown keys in a request body, or about a value where an
object belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

_MAX_KEY = 100
"""Characters of an unknown key that are compared and shown."""
_MIN_SIMILARITY = 0.65
"""Similarity from which a known key is suggested: warm_start is none for max_restarts (0.64)."""


def known_keys(kind: Any, path: Sequence[Any]) -> list[str]:
    """Return keys of the object at a path inside a body of this type; empty if any are allowed."""
    models = list(_find_models(kind))
    if not path:
        return list(dict.fromkeys(name for model in models for name in model.model_fields))
    if isinstance(path[0], int):  # an item of a list
        return known_keys(kind, path[1:])
    for model in models:
        if path[0] in model.model_fields:
            return known_keys(model.model_fields[path[0]].annotation, path[1:])
    return []


def describe_unknown(key: str, known: Sequence[str]) -> str:
    """Describe an unknown key, with the most similar known one, or all of them."""
    key = key if len(key) <= _MAX_KEY else key[:_MAX_KEY] + "..."
    similar = get_close_matches(key, known, n=1, cutoff=_MIN_SIMILARITY)
    if similar:
        return f"unknown key {key!r}; did you mean {similar[0]!r}?"
    if known:
        return f"unknown key {key!r}; allowed keys: {', '.join(map(repr, known))}"
    return f"unknown key {key!r}; check the spelling or leave it out"


def describe_no_mapping(value: Any, known: Sequence[str]) -> str:
    """Describe a value that should have been an object with these keys."""
    shown = repr(value)
    what = f"is {shown}" if len(shown) <= 80 else "is not a mapping"
    return f"{what}, but must be a mapping with keys such as {', '.join(map(repr, known))}"


def _find_models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type allows, such as the one in `Model | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _find_models(part)
