"""Overrides: checks, what they set in a job, and which one is in force; pure, stdlib only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, get_args

from accordion.base.errors import OverrideError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Level, OptimizerTarget, Override, OverrideTarget
from accordion.config import Config, format_layers
from accordion.decide.override_levels import (
    resolve_batch,
    resolve_level,
    resolve_local_steps,
    resolve_optimizer,
)

_WHOLE_MODEL: tuple[OverrideTarget, ...] = ("batch", "local_steps", *get_args(OptimizerTarget))
"""Targets that have no layers."""
_SHOWN_ID = 13
"""Characters of an id in a message; the first 13 of a time-ordered UUID are its millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOverride:
    """An override with its level and layers looked up for one job."""

    override: Override
    start: int
    """First epoch for which it holds."""
    level_by_layer: Mapping[str, Level]
    """Levels of the layers that its globs match; empty for another target."""
    global_batch: int | None = None
    """Samples per step, for an override of the batch."""
    local_steps: int | None = None
    """Steps of a round, for an override of local steps."""
    optimizer: Mapping[str, float] = field(default_factory=dict)
    """What an override of the optimizer sets, as in `Decision`; empty for another target."""

    def describe(self, layers: int, *, of: int) -> str:
        """Return a message about the override, which is in force for `layers` of `of` layers."""
        levels = " or ".join(sorted({level.name for level in self.level_by_layer.values()}))
        what = f"{layers} of {of} layers at {levels}"
        if self.global_batch:
            what = f"the global batch at {self.global_batch}"
        if self.local_steps:
            what = f"local steps at {self.local_steps}"
        for name, value in self.optimizer.items():
            what = f"{name} at {value:g}"
        until = "" if self.override.until is None else f" until epoch {self.override.until}"
        return f"{_name(self.override)} holds {what}{until}"

    def is_active(self, epoch: int) -> bool:
        """Return whether the override holds in an epoch."""
        return self.start <= epoch and (self.override.until is None or epoch < self.override.until)


def resolve_override(
    override: Override,
    ladders: Mapping[str, tuple[Level, ...]],
    *,
    start: int,
    config: Config,
) -> ResolvedOverride:
    """Look up the level and layers of an override that starts in epoch `start`.

    `ladders` holds the levels of each of the job's layers, from the lightest to the strongest;
    `config` has the job's settings.

    Raises:
        OverrideError: the job does not have the level or a layer, or the interval is empty.
    """
    try:
        check_interval(override.apply_at, override.until)
        found = _resolve_target(override, ladders, config)
    except OverrideError as error:
        raise OverrideError(f"{_name(override)}: {error}", error.field) from error
    return ResolvedOverride(override=override, start=start, **{"level_by_layer": {}, **found})


def limit_rounds(override: Override, local: LocalSteps | None) -> Override:
    """Return a saved override with no more local steps than rounds may have now: a budget that is
    planned again, for other workers, may allow fewer than it did.
    """
    level = override.level
    if override.target != "local_steps" or local is None or not isinstance(level, int):
        return override
    return replace(override, level=min(level, local.high))


def _resolve_target(
    override: Override, ladders: Mapping[str, tuple[Level, ...]], config: Config
) -> dict[str, Any]:
    level, layers = override.level, override.layers
    match override.target:
        case "batch":
            return {"global_batch": resolve_batch(level, layers, batch=config.batch)}
        case "local_steps":
            return {"local_steps": resolve_local_steps(level, layers, local=config.local_steps)}
        case "lr" | "weight_decay" | "clip_norm":
            ranges = config.optimizer_ranges
            return {"optimizer": resolve_optimizer(override.target, level, layers, ranges=ranges)}
        case "compression":
            names = tuple(ladders)
            check_layers(layers, names)
            matching = matching_layers(layers, names)
            return {"level_by_layer": {one: resolve_level(level, ladders[one]) for one in matching}}


def _name(override: Override) -> str:
    return f"override {override.number or override.id[:_SHOWN_ID]}"


def check_interval(
    apply_at: str | int, until: int | None, *, epoch: int | None = None, epochs: int | None = None
) -> None:
    """Check that an override can hold for at least one epoch.

    `epoch` is the current epoch and `epochs` the number of epochs of the job; None if unknown.

    Raises:
        OverrideError: a value is no epoch, or the interval is empty, over, or not within the job's
            epochs.
    """
    if apply_at not in {"next_step", "next_epoch"} and not _is_epoch(apply_at):
        raise OverrideError(
            f"apply_at is {apply_at!r}; give 'next_step', 'next_epoch' or an epoch from 0 on",
            "apply_at",
        )
    if until is not None and not _is_epoch(until):
        raise OverrideError(f"until is {until!r}; give an epoch from 0 on, or None", "until")
    if until is not None and epochs is not None and until > epochs:
        raise OverrideError(
            f"until is {until}, but the job has {epochs} epochs; give at most {epochs}, or leave it"
            " out to hold until the end",
            "until",
        )
    if epoch is None and not isinstance(apply_at, int):
        return
    start = apply_at if isinstance(apply_at, int) else (epoch or 0) + (apply_at == "next_epoch")
    if epochs is not None and start >= epochs:
        named = f"epoch {start}"
        if not isinstance(apply_at, int):
            named = f"{apply_at}, which is epoch {start}"
        raise OverrideError(
            f"apply_at is {named}; the job's last epoch is {epochs - 1}", "apply_at"
        )
    first = max(start, epoch or 0)
    if until is not None and until <= first:
        raise OverrideError(
            f"until is {until}, but the override would begin in epoch {first}; give at least"
            f" {first + 1}",
            "until",
        )


def check_layers(globs: Sequence[str], layers: Sequence[str]) -> None:
    """Check that each glob matches a layer.

    Raises:
        OverrideError: a glob matches no layer.
    """
    for index, glob in enumerate(globs):
        if not matching_layers([glob], layers):
            raise OverrideError(
                f"no layer matches {glob!r}; layers are {format_layers(layers)}", f"layers/{index}"
            )


def matching_layers(globs: Iterable[str], layers: Sequence[str]) -> tuple[str, ...]:
    """Return the layers that at least one glob matches, in their order."""
    patterns = tuple(globs)
    return tuple(
        layer for layer in layers if any(fnmatchcase(layer, pattern) for pattern in patterns)
    )


def first_epoch(override: Override, epoch: int) -> int:
    """Return the first epoch of an override that arrives during `epoch`."""
    if override.apply_at == "next_step":
        return epoch
    return epoch + 1 if override.apply_at == "next_epoch" else override.apply_at


def whole_model_override(
    overrides: Sequence[ResolvedOverride], epoch: int, *, target: OverrideTarget
) -> ResolvedOverride | None:
    """Return the override in force of a target without layers: the active one with the largest
    number.
    """
    active = [
        item for item in overrides if item.override.target == target and item.is_active(epoch)
    ]
    return max(active, key=lambda item: item.override.number, default=None)


def overrides_by_layer(
    overrides: Sequence[ResolvedOverride], epoch: int
) -> dict[str, ResolvedOverride]:
    """Return the override in force for each layer that has one.

    If several are active, the one with the largest number wins, and on ties the last one given.
    """
    by_layer: dict[str, ResolvedOverride] = {}
    for item in sorted(overrides, key=lambda item: item.override.number):
        if item.is_active(epoch):
            by_layer.update(dict.fromkeys(item.level_by_layer, item))
    return by_layer


def describe_overrides(
    overrides: Sequence[ResolvedOverride], epoch: int, *, num_layers: int
) -> str:
    """Return a message about the overrides in force; empty if there are none."""
    layers = Counter(item.override.id for item in overrides_by_layer(overrides, epoch).values())
    whole_model = [whole_model_override(overrides, epoch, target=target) for target in _WHOLE_MODEL]
    held = [item for item in overrides if item.override.id in layers or item in whole_model]
    return "; ".join(item.describe(layers[item.override.id], of=num_layers) for item in held)


def _is_epoch(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
