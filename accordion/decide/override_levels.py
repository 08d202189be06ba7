"""What the level of an override means for a job, by target; pure, stdlib only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from accordion.base.errors import ConfigError, OverrideError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Level, OptimizerTarget, OptionValue
from accordion.compressors import level_of
from accordion.config import BatchConfig

MAX_FACTOR = 1000.0
"""Largest factor of the learning rate."""
_HALF = ', or factor=0.5 ({"factor": 0.5} in JSON) for half of what is scheduled'


def resolve_level(level: str | float | Mapping[str, OptionValue], ladder: Sequence[Level]) -> Level:
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
    level: str | float | Mapping[str, OptionValue],
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
    _check_whole_model(layers, "the batch level applies")
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


def resolve_local_steps(
    level: str | float | Mapping[str, OptionValue],
    layers: Sequence[str],
    *,
    local: LocalSteps | None,
) -> int:
    """Return the steps of a round that a level or a number selects.

    The job's `high` is the limit of a number too: it was chosen with the learning rate.

    Raises:
        OverrideError: the job has no local steps, the level is unknown, a number is out of range,
            or layers are named.
    """
    if local is None:
        raise OverrideError(
            "this job has no local_steps, so its workers exchange in every step; set local_steps in"
            " a new job",
            "target",
        )
    _check_whole_model(layers, "local steps apply")
    lengths = {"low": local.low, "high": local.high}
    if isinstance(level, str) and level in lengths:
        return lengths[level]
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise OverrideError(
            f"unknown level {level!r} of local steps; known are low ({local.low}), high"
            f" ({local.high}), or a number from 1, which exchanges gradients in every step, to"
            f" {local.high}",
            "level",
        )
    if level > local.high:
        raise OverrideError(
            f"level is {level} local steps; rounds of this job have at most {local.high}"
            " (local_steps.high); give that or less, or set a larger high in a new job",
            "level",
        )
    return level


def resolve_optimizer(
    target: OptimizerTarget,
    level: str | float | Mapping[str, OptionValue],
    layers: Sequence[str],
    *,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, float]:
    """Return what an override sets of the optimizer, by the names of `Decision.optimizer`.

    `ranges` holds the least and largest value of each setting that may be overridden. What a
    factor makes of the learning rate is limited where it is applied.

    Raises:
        OverrideError: the run's script sets its optimizer itself, the level is no value or factor,
            it is out of range, or layers are named.
    """
    if target not in ranges:
        ways_out = " or ".join(["change it there", *(f"override its {name}" for name in ranges)])
        raise OverrideError(
            f"the script of this run sets {target} of its optimizer itself; {ways_out}", "target"
        )
    _check_whole_model(layers, f"{target} applies")
    setting, name, value = str(target), str(target), level
    least, most = ranges[target]
    if target == "lr" and isinstance(level, Mapping) and set(level) == {"factor"}:
        setting, name, value = "lr_factor", "the factor of lr", level["factor"]
        least, most = 0.0, MAX_FACTOR
    needs_more = least == 0.0 and target != "weight_decay"
    limits = f"above 0, up to {most:g}" if needs_more else f"from {least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        factor = _HALF if name == "lr" else ""
        raise OverrideError(f"{name} is {value!r}; give a number {limits}{factor}", "level")
    if not least <= value <= most or (needs_more and value == 0.0):
        raise OverrideError(f"{name} is {value}; give a number {limits}", "level")
    return {setting: float(value)}


def _check_whole_model(layers: Sequence[str], what: str) -> None:
    if tuple(layers) != ("*",):
        raise OverrideError(f"{what} to the whole model; leave out the layers", "layers")


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
