"""A person's decisions laid over the policy's, as pure functions; stdlib only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from accordion.compressors import level_of
from accordion.config import BatchConfig, format_layers
from accordion.errors import ConfigError, OverrideError
from accordion.messages import Level, Override

_SHOWN_ID = 13
"""Characters of an id in a sentence; the first 13 of a time-ordered UUID are its millisecond."""
Ladders = Mapping[str, tuple[Level, ...]]
"""The rungs of each of the job's layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOverride:
    """An override as this job understands it."""

    override: Override
    start: int
    """First epoch it holds for."""
    level_by_layer: Mapping[str, Level]
    """For the layers that its globs match; a rung's options differ where their ladders do. Empty
    for the batch.
    """
    global_batch: int | None = None
    """Samples a step, where it speaks of the batch."""

    def sentence(self, layers: int, *, of: int) -> str:
        """What it holds, for people, where it has that many of the layers."""
        levels = " or ".join(sorted({level.name for level in self.level_by_layer.values()}))
        compression, batch = (
            f"{layers} of {of} layers at {levels}",
            f"the global batch at {self.global_batch}",
        )
        until = "" if self.override.until is None else f" until epoch {self.override.until}"
        return (
            f"override {self.override.id[:_SHOWN_ID]} holds"
            f" {batch if self.global_batch else compression}{until}"
        )

    def holds(self, epoch: int) -> bool:
        """Whether it is in force in this epoch."""
        return self.start <= epoch and (self.override.until is None or epoch < self.override.until)


def resolve(
    override: Override, ladders: Ladders, *, start: int, batch: BatchConfig | None = None
) -> ResolvedOverride:
    """The override with its level and layers looked up.

    Raises:
        OverrideError: a level or a layer that this job does not have, or epochs that hold nothing.
    """
    _check_epochs(override)
    if override.target == "batch":
        return ResolvedOverride(
            override=override,
            start=start,
            level_by_layer={},
            global_batch=_batch_size(override, batch),
        )
    levels = {
        layer: _resolve_level(override, ladders[layer])
        for layer in _matching_layers(override, tuple(ladders))
    }
    return ResolvedOverride(override=override, start=start, level_by_layer=levels)


def _check_epochs(override: Override) -> None:
    start, until = override.apply_at, override.until
    if start not in {"next_step", "next_epoch"} and not _is_epoch(start):
        raise OverrideError(
            f"override {override.id}: apply_at is {start!r}; give 'next_step', 'next_epoch' or an"
            " epoch from 0 on"
        )
    if until is not None and not _is_epoch(until):
        raise OverrideError(
            f"override {override.id}: until is {until!r}; give an epoch from 0 on, or None"
        )
    if (
        isinstance(override.apply_at, int)
        and override.until is not None
        and override.until <= override.apply_at
    ):
        raise OverrideError(
            f"override {override.id}: until epoch {override.until} ends before it starts in epoch"
            f" {override.apply_at}; give until at least {override.apply_at + 1}"
        )


def _is_epoch(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def first_epoch(override: Override, epoch: int) -> int:
    """First epoch of an override that arrives during `epoch`."""
    if override.apply_at == "next_step":
        return epoch
    return epoch + 1 if override.apply_at == "next_epoch" else override.apply_at


def _batch_size(override: Override, batch: BatchConfig | None) -> int:
    level = override.level
    if batch is None:
        raise OverrideError(
            f"override {override.id}: this job has no batch levels, so its batch stays as it is"
        )
    if override.layers != ("*",):
        raise OverrideError(
            f"override {override.id}: the batch is one for the whole model; leave layers out"
        )
    sizes = {"low": batch.low, "high": batch.high}
    if isinstance(level, str) and level in sizes:
        return sizes[level]
    if isinstance(level, int) and not isinstance(level, bool) and level >= 1:
        return level
    raise OverrideError(
        f"override {override.id}: unknown level {level!r} of the batch; known are low ({batch.low}"
        f" samples), high ({batch.high}), or a number of samples from 1 on"
    )


def batch_override(resolved: Sequence[ResolvedOverride], epoch: int) -> ResolvedOverride | None:
    """The override in force for the batch, the one with the largest number."""
    held = [item for item in resolved if item.global_batch is not None and item.holds(epoch)]
    return max(held, key=lambda item: item.override.number, default=None)


def overrides_by_layer(
    resolved: Sequence[ResolvedOverride], epoch: int
) -> dict[str, ResolvedOverride]:
    """The override in force by layer: where two overlap, the larger number wins, then the later in
    the sequence.
    """
    by_layer: dict[str, ResolvedOverride] = {}
    for item in sorted(resolved, key=lambda item: item.override.number):
        if item.holds(epoch):
            by_layer.update(dict.fromkeys(item.level_by_layer, item))
    return by_layer


def _resolve_level(override: Override, ladder: Sequence[Level]) -> Level:
    level = override.level
    if isinstance(level, Mapping):
        return _level_of_options(override.id, level, ladder[0].method)
    if isinstance(level, int) and not isinstance(level, bool) and 0 <= level < len(ladder):
        return ladder[level]
    for rung in ladder:
        if rung.name == level:
            return rung
    known = ", ".join(f"{rung.name} ({index})" for index, rung in enumerate(ladder))
    raise OverrideError(
        f"override {override.id}: unknown level {level!r}; known are {known}, or options such as "
        f"{dict(ladder[0].options) or {'method': 'none'}}"
    )


def _level_of_options(override_id: str, given: Mapping[str, object], default_method: str) -> Level:
    options = {key: value for key, value in given.items() if key != "method"}
    method = given.get("method", default_method)
    texts = [f"{key}={value}" for key, value in sorted(options.items())]
    if method != default_method or not texts:
        texts.insert(0, str(method))
    try:
        return level_of(method, options, name=" ".join(texts))  # type: ignore[arg-type]  # level_of checks them
    except ConfigError as error:
        raise OverrideError(f"override {override_id}: {error}") from error


def _matching_layers(override: Override, layers: Sequence[str]) -> tuple[str, ...]:
    for glob in override.layers:
        if not any(fnmatchcase(layer, glob) for layer in layers):
            raise OverrideError(
                f"override {override.id}: no layer matches {glob!r}; layers are"
                f" {format_layers(layers)}"
            )
    return tuple(
        layer for layer in layers if any(fnmatchcase(layer, glob) for glob in override.layers)
    )


__all__ = [
    "Ladders",
    "ResolvedOverride",
    "batch_override",
    "first_epoch",
    "overrides_by_layer",
    "resolve",
]
