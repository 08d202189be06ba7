"""A spec from a YAML or JSON file, with values set on the command line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from service.errors import SettingsError

_MERGE = "tag:yaml.org,2002:merge"
"""YAML's `<<`, which may stand more than once."""


def read_spec(name: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The spec of a file, `-` being standard input, after the changes (`training.epochs=5`).

    Raises:
        SettingsError: the file cannot be read, is neither YAML nor JSON, gives a key twice, or
            holds no mapping or what JSON cannot say; a change is malformed.
    """
    spec = parse(_text(name), name)
    for change in changes:
        set_value(spec, change)
    _check_json(spec, name)
    return spec


def parse(text: str, name: str) -> dict[str, Any]:
    """YAML or JSON as a mapping; JSON is tried first, since YAML reads some of its numbers as text.

    Raises:
        SettingsError: it is neither, or no mapping, or says the same thing twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=partial(mapping_once, name=name))
    except (ValueError, RecursionError):
        value = _yaml(text, name)
    if not isinstance(value, dict):
        raise SettingsError(
            f"{name} holds {_kind(value)}; a spec is a mapping such as 'task: {{name: digits-mlp}}'"
        )
    return value


def set_value(spec: dict[str, Any], change: str) -> None:
    """Change one value in place; the right side is YAML.

    Raises:
        SettingsError: it is no `path=value`, its value gives a key twice, or the path leads through
            what is no mapping.
    """
    path, equals, text = change.partition("=")
    *folders, last = path.strip().split(".")
    if not equals or not all([*folders, last]):
        raise SettingsError(
            f"--set {change!r} is not of the form path=value, such as training.epochs=5"
        )
    place = spec
    for folder in folders:
        inner = place.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise SettingsError(
                f"--set {path}: {folder!r} is {inner!r} in the file, which holds no {last!r}"
            )
        place = inner
    place[last] = _yaml(text, f"--set {path}")


def mapping_once(pairs: Sequence[tuple[str, Any]], *, name: str) -> dict[str, Any]:
    """What JSON makes of the pairs in braces, where each key is given once.

    Raises:
        SettingsError: one is given twice, of which JSON's reader would silently take the last.
    """
    once([key for key, _ in pairs], name)
    return dict(pairs)


def once(keys: Iterable[Any], name: str) -> None:
    """Accept keys that are all different.

    Raises:
        SettingsError: some are not.
    """
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise SettingsError(f"{name} gives {', '.join(map(repr, twice))} more than once; keep one")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(
            f"{name} cannot be read ({reason}); name a YAML or JSON file, or - for standard input"
        ) from error


def _yaml(text: str, name: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice, of which YAML's own would silently take the last."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = [
                key
                for key, _ in node.value
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE
            ]
            once(
                [self.construct_object(key) for key in keys],
                f"{name}, in the mapping of line {_line(node)},",
            )
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 -- it is the safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise SettingsError(f"{name} is neither YAML nor JSON: {problem}{where}") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SettingsError(
            f"{name} holds a value that cannot be read: {reason}; put texts in quotes"
        ) from error


def _check_json(spec: dict[str, Any], name: str) -> None:
    """YAML knows more than JSON, as which a spec travels."""
    try:
        json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{name} holds a value that JSON cannot express ({error}); "
            "put dates in quotes, give finite numbers, and let no alias hold itself"
        ) from error


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"the value {value!r}")
