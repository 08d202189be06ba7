"""Reads a spec from a YAML or JSON file, and sets values given on the command line."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accordion_service.errors import SettingsError

_MERGE = "tag:yaml.org,2002:merge"
"""YAML's merge key `<<`, which may occur more than once."""
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"
_STRING = "tag:yaml.org,2002:str"
_UNQUOTED = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int"))
_EXPONENT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
"""Numbers with exponents of YAML 1.2; 1.1 takes those without a point or a sign for texts."""
_TEXTS = ("env", "labels")
"""Sections of a spec whose values are texts: `yes` is one there, and so is 1e3."""
_TEXT_DEPTH = 2
"""Keys that lead to such a value: the section and its name."""


def read_spec(name: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Read a spec (`-` is standard input) and apply the changes (`training.epochs=5`).

    Raises:
        SettingsError: the file cannot be read, is neither YAML nor JSON, has a duplicate key, is
            not a mapping, or has a value that JSON cannot express; or a change is malformed.
    """
    spec = parse_spec(_read_text(name), name)
    for change in changes:
        set_value(spec, change)
    _check_json(spec, name)
    return spec


def parse_spec(text: str, name: str) -> dict[str, Any]:
    """Parse JSON or YAML as a mapping; JSON first, since YAML reads some of its numbers as text.

    Raises:
        SettingsError: the text is neither, is not a mapping, or has a duplicate key.
    """
    try:
        value = json.loads(text, object_pairs_hook=partial(build_unique_mapping, name=name))
    except (ValueError, RecursionError):
        value = _parse_yaml(text, name, ())
    if not isinstance(value, dict):
        raise SettingsError(
            f"{name} holds {_describe_type(value)}; a spec is a mapping such as"
            " 'task: {name: digits-mlp}'"
        )
    return value


def set_value(spec: dict[str, Any], change: str) -> None:
    """Change one value in place; the right side is YAML.

    Raises:
        SettingsError: the change is not `path=value`, its value has a duplicate key, or the path
            leads through a value that is not a mapping.
    """
    path, text = _split_change(change)
    *folders, last = path.split(".")
    place = spec
    for folder in folders:
        inner = place.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise SettingsError(
                f"--set {path}: {folder!r} is {inner!r} in the file, which has no {last!r}"
            )
        place = inner
    place[last] = _parse_yaml(text, f"--set {path}", path.split("."))


def build_patch(spec: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Build the JSON merge patch (RFC 7396) that sets these values in a spec. Where one of them is
    a mapping, the patch removes the other keys that the spec has there.

    Raises:
        SettingsError: like `set_value`.
    """
    patch: dict[str, Any] = {}
    for change in changes:
        set_value(patch, change)
    for change in changes:
        _replace_at(patch, spec, _split_change(change)[0].split("."))
    return patch


def build_unique_mapping(pairs: Sequence[tuple[str, Any]], *, name: str) -> dict[str, Any]:
    """Build a mapping from JSON pairs with distinct keys.

    Raises:
        SettingsError: a key is given twice; JSON's parser would silently use the last value.
    """
    check_unique([key for key, _ in pairs], name)
    return dict(pairs)


def check_unique(keys: Iterable[Any], name: str) -> None:
    """Check that all keys are different.

    Raises:
        SettingsError: a key is given more than once.
    """
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise SettingsError(f"{name} gives {', '.join(map(repr, twice))} more than once; keep one")


def _split_change(change: str) -> tuple[str, str]:
    """Return the path and the value, as YAML, of a change."""
    path, equals, text = change.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise SettingsError(
            f"--set {change!r} is not of the form path=value, such as training.epochs=5"
        )
    return path, text


def _replace_at(patch: dict[str, Any], spec: Any, path: Sequence[str]) -> None:
    """Let the mapping that a patch has at a path, if it is one, replace that of the spec."""
    name, *rest = path
    value, known = patch.get(name), spec.get(name) if isinstance(spec, Mapping) else None
    if rest and isinstance(value, dict):
        _replace_at(value, known, rest)
    elif not rest:
        patch[name] = _remove_others(known, value)


def _remove_others(known: Any, value: Any) -> Any:
    """Return a value with null for each key that only the known one has, at all depths."""
    if not isinstance(value, dict):
        return value
    known = known if isinstance(known, Mapping) else {}
    kept = {name: _remove_others(known.get(name), inner) for name, inner in value.items()}
    return {**dict.fromkeys(known), **kept}


def _line_number(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _read_text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(
            f"{name} cannot be read ({reason}); name a YAML or JSON file, or - for standard input"
        ) from error


def _build_loader(name: str, place: Sequence[str]) -> Any:
    """Build the class that loads what stands at a place of a spec; `name` is for error messages."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Rejects duplicate keys, of which YAML's own loader would silently use the last, and keeps
        times as texts, which JSON has instead.
        """

        yaml_implicit_resolvers = {  # noqa: RUF012 -- as in the base class
            first: [(tag, pattern) for tag, pattern in rules if tag != _TIMESTAMP]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def get_single_node(self) -> Any:
            return _keep_texts(super().get_single_node(), place, self)

        def construct_yaml_float(self, node: Any) -> float:
            number = super().construct_yaml_float(node)
            is_whole = _EXPONENT.match(node.value) and number.is_integer()
            return int(number) if is_whole else number

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            node.value = [(_as_name(key), value) for key, value in node.value]
            keys = [
                key
                for key, _ in node.value
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE
            ]
            check_unique(
                [self.construct_object(key) for key in keys],
                f"{name}, in the mapping of line {_line_number(node)},",
            )
            return node

    Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
    Loader.add_constructor(_FLOAT, Loader.construct_yaml_float)
    return Loader


def _as_name(key: Any) -> Any:
    """Return the key of a mapping as a text, since JSON has no others: `OFF` is no boolean there.
    An alias may stand for the same node elsewhere, so it is copied.
    """
    import yaml

    return yaml.ScalarNode(_STRING, key.value, key.start_mark) if key.tag in _UNQUOTED else key


def _keep_texts(node: Any, place: Sequence[str], loader: Any) -> Any:
    """Return a node of a spec with texts in place of plain values in `_TEXTS`. Nodes are copied,
    since an alias may stand for one elsewhere.
    """
    import yaml

    if place and (place[0] not in _TEXTS or len(place) > _TEXT_DEPTH):
        return node
    if isinstance(node, yaml.MappingNode):
        pairs = [
            (key, _keep_texts(value, place if key.tag == _MERGE else (*place, key.value), loader))
            for key, value in node.value
        ]
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    if isinstance(node, yaml.ScalarNode) and len(place) == _TEXT_DEPTH:
        plain = loader.resolve(yaml.ScalarNode, node.value, (True, False))
        if node.tag == plain and plain in _UNQUOTED:
            return yaml.ScalarNode(_STRING, node.value)
    return node


def _parse_yaml(text: str, name: str, place: Sequence[str]) -> Any:
    """Parse what stands at a place of a spec, such as `("env", "NAME")`; all of it at `()`."""
    import yaml

    try:
        loader = _build_loader(name, place)
        return yaml.load(text, loader)  # noqa: S506 -- a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        is_tag = " tag" in f"{getattr(error, 'context', None)}: {problem}"
        hint = "; put texts that begin with ! in quotes" if is_tag else ""
        raise SettingsError(f"{name} is neither YAML nor JSON: {problem}{where}{hint}") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SettingsError(
            f"{name} holds a value that cannot be read: {reason}; put texts in quotes"
        ) from error


def _check_json(spec: dict[str, Any], name: str) -> None:
    """Reject values that JSON cannot express: a spec is sent as JSON."""
    try:
        json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{name} holds a value that JSON cannot express ({error}); "
            "use texts, finite numbers, lists and mappings, and no alias that contains itself"
        ) from error


def _describe_type(value: Any) -> str:
    names = {list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"the value {value!r}")
