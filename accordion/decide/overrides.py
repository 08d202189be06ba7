"""Overrides: checks, the levels they resolve to, and which one is in force; pure, stdlib only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from accordion.base.errors import ConfigError, OverrideError
from accordion.base.messages import Level, OptionValue, Override
from accordion.compressors import level_of
from accordion.config import BatchConfig, format_layers

_SHOWN_ID = 13
"""Characters of an id in a message; the first 13 of a time-ordered UUID are its millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOverride:
    """An override with its level and layers looked up for one job."""

    override: Override
    start: int
    """First epoch for which it holds."""
    level_by_layer: Mapping[str, Level]
    """Levels of the layers that its globs match; empty for an override of the batch."""
    global_batch: int | None = None
    """Samples per step, for an override of the batch."""

    def describe(self, layers: int, *, of: int) -> str:
        """Return a message about the override, which is in force for `layers` of `of` layers."""
        levels = " or ".join(sorted({level.name for level in self.level_by_layer.values()}))
        what = f"{layers} of {of} layers at {levels}"
        if self.global_batch:
            what = f"the global batch at {self.global_batch}"
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
    batch: BatchConfig | None = None,
) -> ResolvedOverride:
    """Look up the level and layers of an override that starts in epoch `start`.

    `ladders` holds the levels of each of the job's layers, from the lightest to the strongest.

    Raises:
        OverrideError: the job does not have the level or a layer, or the interval is empty.
    """
    try:
        check_interval(override.apply_at, override.until)
        if override.target == "batch":
            size = resolve_batch(override.level, override.layers, batch=batch)
            return ResolvedOverride(
                override=override, start=start, level_by_layer={}, global_batch=size
            )
        names = tuple(ladders)
        check_layers(override.layers, names)
        levels = {
            layer: resolve_level(override.level, ladders[layer])
            for layer in matching_layers(override.layers, names)
        }
    except OverrideError as error:
        raise OverrideError(f"{_name(override)}: {error}", error.field) from error
    return ResolvedOverride(override=override, start=start, level_by_layer=levels)


def _name(override: Override) -> str:
    return f"override {override.number or override.id[:_SHOWN_ID]}"


def resolve_level(level: str | int | Mapping[str, OptionValue], ladder: Sequence[Level]) -> Level:
    """Return the level that a name, an index or options select on a ladder.

    Raises:
        OverrideError: the ladder has no such level, or the method refuses the options.
    """
    if isinstance(level, Mapping):
        return _level_from_options(level, ladder[0].method)
    if isinstance(level, int) and not isinstance(level, bool) and 0 <= level < len(ladder):
        return ladder[level]
    for known_level in ladder:
        if known_level.name == level:
            return known_level
    known = ", ".join(f"{one.name} ({index})" for index, one in enumerate(ladder))
    option, value = next(iter(dict(ladder[0].options).items()), ("method", "none"))
    raise OverrideError(
        f"unknown level {level!r}; known are {known}, or options such as {option}={value}"
        f" ({json.dumps({option: value})} in JSON)",
        "level",
    )


def resolve_batch(
    level: str | int | Mapping[str, OptionValue],
    layers: Sequence[str],
    *,
    batch: BatchConfig | None,
    minimum: int = 1,
) -> int:
    """Return the global batch, in samples per step, that a level or a number selects.

    Raises:
        OverrideError: the job has no batch levels, the level is unknown, a number is below
            `minimum`, or layers are named.
    """
    if batch is None:
        raise OverrideError(
            "this job has no batch levels, so its batch stays as it is; set the high batch in a new"
            " job",
            "target",
        )
    if tuple(layers) != ("*",):
        raise OverrideError(
            "the batch level applies to the whole model; leave out the layers", "layers"
        )
    sizes = {"low": batch.low, "high": batch.high}
    if isinstance(level, str) and level in sizes:
        return sizes[level]
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise OverrideError(
            f"unknown level {level!r} of the batch; known are low ({batch.low} samples), high"
            f" ({batch.high}), or a number of samples from {minimum} on",
            "level",
        )
    if level < minimum:
        raise OverrideError(
            f"level is {level} samples; the batch needs at least {minimum}, so that every worker of"
            " this job gets a part",
            "level",
        )
    return level


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


def batch_override(overrides: Sequence[ResolvedOverride], epoch: int) -> ResolvedOverride | None:
    """Return the batch override in force, the active one with the largest number."""
    active = [item for item in overrides if item.global_batch is not None and item.is_active(epoch)]
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


def _is_epoch(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _level_from_options(given: Mapping[str, object], default_method: str) -> Level:
    options = {key: value for key, value in given.items() if key != "method"}
    method = given.get("method", default_method)
    texts = [f"{key}={value}" for key, value in sorted(options.items())]
    if method != default_method or not texts:
        texts.insert(0, str(method))
    try:
        return level_of(method, options, name=" ".join(texts))  # type: ignore[arg-type]  # level_of checks them
    except ConfigError as error:
        raise OverrideError(str(error), "level") from error
