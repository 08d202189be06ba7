"""Suggests keys for error messages about unknown keys in a request body, or about a value where an
object belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel

_MAX_KEY = 100
"""Characters of an unknown key that are compared and shown."""
_MIN_SIMILARITY = 0.65
"""Similarity from which a known key is suggested: warm_start is none for max_restarts (0.64)."""
_MAX_DEPTH = 4
"""Keys of a path that is suggested."""
_ALIASES = {
    "amp": "training.precision",
    "batch_size": "training.global_batch",
    "dependencies": "pip",
    "early_stopping": "objective.patience",
    "environment": "env",
    "envs": "env",
    "grad_clip": "training.clip_norm",
    "gradient_clip_val": "training.clip_norm",
    "learning_rate": "training.optimizer.lr",
    "lr_schedule": "training.lr_decay",
    "lr_scheduler": "training.lr_decay",
    "max_epochs": "training.epochs",
    "max_grad_norm": "training.clip_norm",
    "max_restarts": "max_failures",
    "max_retries": "max_failures",
    "mixed_precision": "training.precision",
    "model": "task",
    "num_epochs": "training.epochs",
    "num_nodes": "workers.max",
    "num_workers": "workers.max",
    "replicas": "workers.max",
    "requirements": "pip",
    "scheduler": "training.lr_decay",
    "timeout": "limits.training_seconds",
    "warmup_epochs": "training.warmup.epochs",
    "workdir": "code",
    "working_dir": "code",
}
"""Keys of a job file by what other tools call them."""


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


def describe_unknown(key: str, kind: Any, path: Sequence[Any]) -> str:
    """Describe an unknown key of the object at a path, with the one that was meant, or all of them.

    That is a key of this name further inside, one of other tools' names for it, or a similar key.
    """
    key, known = key if len(key) <= _MAX_KEY else key[:_MAX_KEY] + "...", known_keys(kind, path)
    meant = _find_inside(key, kind, path) or _find_alias(key, kind)
    if not meant and (similar := get_close_matches(key, known, n=1, cutoff=_MIN_SIMILARITY)):
        meant = similar[0]
    if meant:
        return f"unknown key {key!r}; did you mean {meant!r}?"
    if known:
        return f"unknown key {key!r}; allowed keys: {', '.join(map(repr, known))}"
    return f"unknown key {key!r}; check the spelling or leave it out"


def _find_inside(key: str, kind: Any, path: Sequence[Any]) -> str:
    """Return the shortest path that ends with a key below the object at a path; empty if none."""
    start = ".".join(str(part) for part in path if isinstance(part, str))
    inside = [one for one in _list_paths(kind) if not start or one.startswith(f"{start}.")]
    return min((one for one in inside if one.endswith(f".{key}")), key=_depth, default="")


def _find_alias(key: str, kind: Any) -> str:
    """Return what other tools call by this name; empty if they do not, or the body has no such."""
    meant = _ALIASES.get(key, "")
    return meant if meant in _list_paths(kind) else ""


def _depth(path: str) -> int:
    return path.count(".")


def _list_paths(kind: Any, start: str = "", depth: int = 0) -> list[str]:
    """Return the paths of all keys of a body without lists, such as `training.epochs`."""
    if depth == _MAX_DEPTH:
        return []
    paths = []
    for model in _find_models(kind):
        for name, field in model.model_fields.items():
            paths += [f"{start}{name}"]
            if get_origin(field.annotation) not in (list, tuple, dict):
                paths += _list_paths(field.annotation, f"{start}{name}.", depth + 1)
    return paths


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
