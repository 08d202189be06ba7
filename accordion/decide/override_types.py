"""Whether what a loop hands over is a set of overrides, before one of them is looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from accordion.base.errors import OverrideError
from accordion.base.messages import Override, OverrideTarget


def check_types(overrides: Sequence[Override]) -> None:
    """Check that these are overrides with a target, layers and an id of their own each.

    Raises:
        OverrideError: they are not.
    """
    if isinstance(overrides, Override) or not isinstance(overrides, Sequence):
        raise OverrideError(f"overrides is {overrides!r}; give a list of all that are to hold")
    for override in overrides:
        _check_type(override)
    for one, count in Counter(override.id for override in overrides).items():
        if count > 1:
            raise OverrideError(f"{count} overrides have the id {one!r}; give each its own", "id")


def _check_type(override: Override) -> None:
    if not isinstance(override, Override):
        raise OverrideError(f"overrides has {override!r}; give objects of accordion.Override")
    if not isinstance(override.id, str) or not override.id:
        raise OverrideError(f"an override's id is {override.id!r}; give a text", "id")
    if override.target not in get_args(OverrideTarget):
        known = ", ".join(get_args(OverrideTarget))
        raise OverrideError(f"target is {override.target!r}; give one of {known}", "target")
    layers = override.layers
    if not isinstance(layers, list | tuple) or not layers or {type(it) for it in layers} != {str}:
        raise OverrideError(
            f"layers is {layers!r}; give a tuple of globs, such as ('*',)", "layers"
        )
