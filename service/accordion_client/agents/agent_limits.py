"""What an agent may ask for, beside what the service allows everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic import ValidationError

from accordion_service.errors import SettingsError
from accordion_workers.records.contract import JobSpec

AskedLevel = str | int | float | dict[str, bool | int | float | str]
"""Level of an override, as in `OverrideRequest`."""


class LimitError(ValueError):
    """An agent asked for more than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server, for all jobs together.

    Raises:
        SettingsError: a number is out of range.
    """

    applies: bool = False
    """Whether overrides are applied; otherwise they are proposed to a person."""
    most_overrides: int = 10
    """Overrides that are applied as long as the server runs."""
    most_epochs: int = 10
    """Epochs for which an override holds at most."""
    most_factor: float = 2.0
    """Largest factor of the learning rate, weight decay and clipping; the smallest is its
    reciprocal.
    """
    loss_factor: float = 1.5
    """Rise of an epoch's training loss from which overrides are handed back."""

    def __post_init__(self) -> None:
        for name, least in (("most_overrides", 0), ("most_epochs", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}; give {least} or more")
        for name in ("most_factor", "loss_factor"):
            if not 1.0 < getattr(self, name) < 1000.0:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}; give a number above 1 and below 1000"
                )


def check_level(target: str, level: AskedLevel, *, spec: Mapping[str, Any], limits: Limits) -> None:
    """Check that a level lies between those of the job, or within the factor of its value.

    Raises:
        LimitError: it does not, or the job file cannot be read.
    """
    job = _read_job(spec, target)
    config = job.config()
    match target:
        case "compression":
            _check_compression(level, config.ladder())
        case "batch":
            sizes = None if job.batch is None else (job.training.global_batch, job.batch.high)
            _check_number("batch", level, sizes)
        case "local_steps":
            local = config.local_steps
            _check_number("local_steps", level, None if local is None else (1, local.high))
        case "lr":
            _check_rate(level, limits.most_factor)
        case "weight_decay":
            decay = job.training.optimizer.weight_decay
            _check_number(target, level, (0.0, decay * limits.most_factor))
        case "clip_norm":
            norm, factor = job.training.clip_norm, limits.most_factor
            _check_number(target, level, None if norm is None else (norm / factor, norm * factor))
        case _:
            raise LimitError(f"an agent overrides no {target!r}")


def _read_job(spec: Mapping[str, Any], target: str) -> JobSpec:
    """Return the job whose target is overridden."""
    try:
        job = JobSpec.model_validate(spec)
    except ValidationError as error:
        raise LimitError(
            "this server cannot read the job file, which another version wrote; override it by"
            " the command line of the service's version"
        ) from error
    ranges = job.config().optimizer_ranges
    if target in ("lr", "weight_decay", "clip_norm") and target not in ranges:
        ways_out = " or ".join(["change it there", *map("override its {}".format, ranges)])
        raise LimitError(f"the script of this job sets {target} itself; {ways_out}")
    return job


def _check_compression(level: AskedLevel, ladder: Sequence[Any]) -> None:
    """Check a name, an index, or options between those of the ladder's levels."""
    if not isinstance(level, dict):
        names = [one.name for one in ladder]
        is_index = _is_number(level) and level in range(len(ladder))
        if level not in names and not is_index:
            raise LimitError(f"level is {level!r}; give {', '.join(names)}, or options between")
        return
    for name, value in level.items():
        known = [one.options[name] for one in ladder if name in one.options]
        numbers = [float(one) for one in known if _is_number(one)]
        if not numbers or not _is_number(value) or not _is_between(value, numbers):
            between = "low or high"
            if numbers:
                between = f"{name} from {min(numbers):g} to {max(numbers):g}"
            raise LimitError(f"level has {name} {value!r}; this job's levels allow {between}")


def _check_rate(level: AskedLevel, most: float) -> None:
    factor = level.get("factor") if isinstance(level, dict) and len(level) == 1 else None
    if not _is_number(factor) or not _is_between(factor, (1.0 / most, most)):
        raise LimitError(
            f'level is {level!r}; an agent changes lr by {{"factor": number}} from {1.0 / most:g}'
            f" to {most:g}"
        )


def _check_number(name: str, level: AskedLevel, bounds: tuple[float, float] | None) -> None:
    if bounds is None:
        raise LimitError(f"the job file has no {name}, so an agent cannot override it")
    if level in ("low", "high") and name in ("batch", "local_steps"):
        return
    if not _is_number(level) or not _is_between(level, bounds):
        raise LimitError(f"{name} is {level!r}; give a number from {bounds[0]:g} to {bounds[1]:g}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_between(value: float, bounds: Sequence[float]) -> bool:
    """Compare without a conversion, which a huge whole number does not survive."""
    return min(bounds) <= value <= max(bounds)
