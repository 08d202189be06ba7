"""What a person may wish of a job's compression and batch: checks that say what is wrong before it
is stored; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from accordion.compressors import level_of
from accordion.config import BatchConfig
from accordion.errors import ConfigError
from accordion.messages import Level, OptionValue
from service.errors import Invalid


def matching(globs: Iterable[str], names: Sequence[str]) -> set[str]:
    """The layers that an override speaks of."""
    return {name for pattern in globs for name in names if fnmatchcase(name, pattern)}


def check_level(level: str | int | Mapping[str, OptionValue], ladder: Sequence[Level]) -> None:
    """Accept a rung's name, its index, or options of a level given by hand.

    Raises:
        Invalid: the job's ladder has no such rung, or the method refuses the options.
    """
    names = [rung.name for rung in ladder]
    if isinstance(level, str) and level not in names:
        raise Invalid(
            f"level is {level!r}; this job knows {', '.join(names)}, or options such as "
            '{"rank": 2} or {"method": "none"}',
            "/level",
        )
    if isinstance(level, int) and level >= len(ladder):
        raise Invalid(
            f"level is {level}; this job's ladder has rungs 0 to {len(ladder) - 1}", "/level"
        )
    if isinstance(level, Mapping):
        _check_options(level, ladder[0].method)


def _check_options(level: Mapping[str, OptionValue], method: str) -> None:
    options = {name: value for name, value in level.items() if name != "method"}
    try:
        level_of(str(level.get("method", method)), options, name="by hand")
    except ConfigError as error:
        raise Invalid(str(error), "/level") from error


def check_batch(
    level: str | int | Mapping[str, OptionValue],
    layers: Sequence[str],
    *,
    batch: BatchConfig | None,
    least: int,
) -> None:
    """Accept a level of the job's batch, or a size that is not below `least`.

    Raises:
        Invalid: the job has no batch levels, or the wish is none of these, or it names layers.
    """
    if batch is None:
        raise Invalid(
            "this job has no batch levels, so its batch stays as it is; submit it again with"
            " batch.high",
            "/target",
        )
    if list(layers) != ["*"]:
        raise Invalid("the batch is one for the whole model; leave layers out", "/layers")
    if level in ("low", "high"):
        return
    if not isinstance(level, int):
        raise Invalid(
            f"level is {level!r}; the batch of this job is low ({batch.low} samples), high"
            f" ({batch.high}), or a number of samples",
            "/level",
        )
    if level < least:
        raise Invalid(
            f"level is {level}; from {least} samples on every worker that this job may have gets a"
            " part of the batch",
            "/level",
        )


def check_interval(
    apply_at: str | int, until: int | None, *, epoch: int, epochs: int | None
) -> None:
    """Accept an interval that holds at least one epoch that is still to come; `epoch` runs now.

    `epochs` is the number of epochs of the job, None if it is not known.

    Raises:
        Invalid: it is empty, over, or begins after the job's last epoch.
    """
    start = apply_at if isinstance(apply_at, int) else epoch + (apply_at == "next_epoch")
    if epochs is not None and start >= epochs:
        named = (
            f"epoch {start}" if isinstance(apply_at, int) else f"{apply_at}, which is epoch {start}"
        )
        raise Invalid(f"apply_at is {named}; the job's last epoch is {epochs - 1}", "/apply_at")
    first = max(start, epoch)
    if until is not None and until <= first:
        raise Invalid(
            f"until is {until}, but the override would begin in epoch {first}; give {first + 1} or"
            " more",
            "/until",
        )


def check_layers(globs: Sequence[str], names: Sequence[str]) -> None:
    """Accept globs of which each matches a layer; nothing can be said before the layers are known.

    Raises:
        Invalid: one matches no layer.
    """
    for index, pattern in enumerate(globs):
        if names and not matching([pattern], names):
            raise Invalid(
                f"{pattern!r} matches none of the job's layers {', '.join(names)}",
                f"/layers/{index}",
            )
