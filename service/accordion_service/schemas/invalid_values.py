"""Describes everything that a model rejects in a request body, or in a spec on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.policies import POLICIES
from accordion_service.schemas.foreign_files import translate_foreign
from accordion_service.schemas.jobs import ProblemItem
from accordion_service.schemas.known_keys import describe_no_mapping, describe_unknown, known_keys
from accordion_service.schemas.rejected_values import describe_hidden, describe_rejected
from accordion_workers.common.plain_text import REPLACEMENT
from accordion_workers.tasks import SCRIPT_ROW, TASKS

_NO_MAPPING = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""Types of validation errors about a value where an object belongs."""
_OPTIONS: Mapping[str, frozenset[str]] = {
    "policy": frozenset(name for row in POLICIES.values() for name in row.options),
    "task": frozenset(name for row in (*TASKS.values(), SCRIPT_ROW) for name in row.options),
}
"""Names that belong into `options`, by the section of a spec that has them."""
_SHOWN = 3
"""Rejected values that one sentence names."""
_MAX_DESCRIBED = 20
"""Rejected values that one response describes."""


def describe_errors(found: Sequence[Mapping[str, Any]], kind: Any, body: Any) -> list[ProblemItem]:
    """Describe the first validation errors by their place; `kind` is the type of the body.

    The place of an error in the body begins with `body`, as FastAPI names it. An error about a
    value that a route has put together has the type of that body in `kind`.
    """
    if "task" in known_keys(kind, ()) and (translated := translate_foreign(body)):
        return [ProblemItem(pointer=pointer, detail=detail) for pointer, detail in translated]
    return [
        ProblemItem(
            pointer=_json_pointer(item, body), detail=_describe_item(item, item.get("kind", kind))
        )
        for item in found[:_MAX_DESCRIBED]
    ]


def join_items(items: Sequence[ProblemItem], num_found: int) -> str:
    """Return the first items in one sentence, with the number of other errors."""
    detail = "; ".join(
        f"{item.pointer}: {item.detail}" if item.pointer else item.detail for item in items[:_SHOWN]
    )
    return detail + (f" (and {num_found - _SHOWN} more)" if num_found > _SHOWN else "")


def _json_pointer(item: Mapping[str, Any], body: Any) -> str:
    """Return a JSON pointer into the body, or a path such as `query/limit` or `header/if-match`.

    Pydantic also names what is no place in the body: the member of a union, the kind of a record,
    and `[key]` if the name of a value is wrong.
    """
    loc: tuple[str | int, ...] = item["loc"]
    if loc[:1] != ("body",):
        return "/".join(map(str, loc))
    parts = []
    for depth, part in enumerate(loc[1:], start=1):
        if _is_place(body, part):
            parts.append(part)
            body = body[part]
        elif REPLACEMENT in str(part):  # a key whose text is refused, and keys below it
            parts += loc[depth:]
            break
    parts += loc[1:][-1:] if item["type"] == "missing" else ()
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def _is_place(body: Any, part: str | int) -> bool:
    """Return whether a value has this key or index."""
    if isinstance(body, Mapping):
        return part in body
    return isinstance(body, list) and isinstance(part, int) and part < len(body)


def _describe_item(item: Mapping[str, Any], kind: Any) -> str:
    """Describe what is wrong with one value; `kind` is the type of the body."""
    if item["type"] == "extra_forbidden":
        return _describe_unknown(item["loc"], kind)
    if item["type"] == "missing":
        return "is missing and has no default"
    inner = item["loc"][1:]
    in_body = item["loc"][:1] == ("body",)
    if in_body and getattr(kind, "model_config", {}).get("hide_input_in_errors"):
        return describe_hidden(item)
    known = known_keys(kind, inner) if inner and item["type"] in _NO_MAPPING else []
    if known:
        return describe_no_mapping(item.get("input"), known)
    return describe_rejected(item)


def _describe_unknown(loc: tuple[Any, ...], kind: Any) -> str:
    key, section = str(loc[-1]), str(loc[-2])
    if key in _OPTIONS.get(section, ()):
        return f"unknown key {key!r}; did you mean '{section}.options.{key}'?"
    return describe_unknown(key, kind, loc[1:-1])
