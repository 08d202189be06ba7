"""Request and response models of overrides."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from accordion.base.messages import Ack, OptimizerTarget, OptionValue, OverrideTarget
from accordion_service.domain.overrides.states import OverrideState
from accordion_service.schemas.jobs import PLAIN, PLAIN_LINES, Answer, Request
from accordion_service.schemas.queries import QueryParams
from accordion_workers.spec.types import MAX_SAMPLES, Number, Whole

_MAX_EPOCH = 100_000
_MAX_SETTING = 10**12
"""Largest number of a setting of the optimizer; a job file has a range for each."""
_SETTINGS = get_args(OptimizerTarget)
_MAX_SHOWN = 64
"""Characters of the name and of the value of an option that an error repeats."""


def _check_start(value: object) -> object:
    """Check the start of an override here: a union would report what each of its members lacks."""
    if not _is_epoch(value) and value not in ("next_step", "next_epoch"):
        raise ValueError(
            f"apply_at is {value!r}; give next_step, next_epoch or an epoch from 0 to {_MAX_EPOCH}"
        )
    return value


def _check_level(value: object, info: ValidationInfo) -> object:
    """Check the form of a level here, as `_check_start` does; 1.0 is a whole number, as in JSON."""
    if isinstance(value, dict):
        for name, option in value.items():
            _check_option(name, option)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    most, name = MAX_SAMPLES, ", or a name"
    if info.data.get("target") in _SETTINGS:
        most, name = _MAX_SETTING, ""
    if not 0 <= value <= most:
        raise ValueError(f"level is {value}; give a number from 0 to {most}{name}")
    return int(value) if value % 1 == 0 else value


def _check_option(name: object, option: object) -> None:
    if (isinstance(option, float) and isfinite(option)) or isinstance(option, bool | int | str):
        return
    shown = f"{str(name)[:_MAX_SHOWN]} {repr(option)[:_MAX_SHOWN]}"
    raise ValueError(f"level has {shown}; give a finite number, a name, true or false")


def _is_epoch(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value % 1 == 0 and 0 <= value <= _MAX_EPOCH


class OverrideRequest(Request):
    """Replaces the policy's decision about the compression of some layers, about the batch, or
    about local steps, or what the job file says of the optimizer.
    """

    target: OverrideTarget = "compression"
    """What to override: the compression of layers (default), the size of the global batch, the
    local steps between two exchanges, for a job whose spec has `local_steps`, or the optimizer's
    learning rate, weight decay or norm from which gradients are clipped.
    """
    level: Annotated[
        Annotated[str, Field(min_length=1, max_length=64)]
        | Annotated[Whole, Field(ge=0, le=MAX_SAMPLES)]
        | Annotated[Number, Field(ge=0, le=_MAX_SETTING)]
        | dict[str, OptionValue],
        BeforeValidator(_check_level),
    ]
    """Compression: `low` (light), `high` (strong), the index of a level (0 is the lightest), or
    options such as `{"rank": 2}` or `{"method": "none"}`.

    Batch: `low`, `high`, or a number of samples per step.

    Local steps: `low`, `high`, or a number from 1, which exchanges gradients in every step, to the
    spec's `local_steps.high`, or to the one that its budget has become, beyond which the workers
    refuse it. It holds in the first `start_steps` too.

    Optimizer: a number within the spec's `training.override_ranges`; for `lr` also
    `{"factor": 0.5}`, for half of the scheduled learning rate. Of a script, only `lr`.
    """
    layers: list[Annotated[str, Field(min_length=1, max_length=512, pattern=PLAIN)]] = Field(
        default=["*"], min_length=1, max_length=256
    )
    """Names of layers, with wildcards such as `fc*`. Default: all layers. Only for compression;
    everything else is for the whole model.
    """
    apply_at: Annotated[
        Literal["next_step", "next_epoch"] | Annotated[Whole, Field(ge=0, le=_MAX_EPOCH)],
        BeforeValidator(_check_start),
    ] = "next_step"
    """When to start: at the next step (default), the next epoch, or a given epoch, counted from 0.
    While workers take local steps, the next step is the first one after the running round.
    """
    until: Annotated[Whole, Field(ge=1, le=_MAX_EPOCH)] | None = None
    """First epoch in which the policy decides again, counted from 0. Default: null, which holds
    until the end of the job.
    """
    reason: str = Field(default="", max_length=1000, pattern=PLAIN_LINES)
    """Why, for the record; shown with the override. Default: empty."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"level": "low"},
                {
                    "level": {"method": "none"},
                    "layers": ["*"],
                    "apply_at": "next_epoch",
                    "reason": "the loss jumped",
                },
                {"target": "batch", "level": "high", "until": 100},
                {"target": "local_steps", "level": 8},
                {"target": "lr", "level": {"factor": 0.5}, "reason": "the loss jumped"},
            ]
        }
    )


class CancelQuery(QueryParams):
    """Query parameters of a cancellation."""

    reason: str = Field(
        default="",
        max_length=1000,
        pattern=PLAIN_LINES,
        description="why, for the record; shown with the override",
    )


class OverrideView(Answer):
    """An override and its status."""

    id: str
    """ID of the override (UUID)."""
    number: int
    """Number within the job, in order of arrival; where overrides overlap, the larger one wins."""
    target: OverrideTarget
    """What it overrides: the compression of layers, the size of the global batch, the local steps
    between two exchanges, or a setting of the optimizer.
    """
    level: str | int | float | dict[str, OptionValue]
    """Requested level: a name, an index, options, a number of samples per step or of local steps,
    or a value of the optimizer's setting.
    """
    layers: list[str]
    """Names of layers, with wildcards; only `*` for what has no layers."""
    apply_at: str | int
    """When it starts: `next_step`, `next_epoch`, or an epoch counted from 0."""
    until: int | None
    """First epoch in which the policy decides again; null if it holds until the end of the job."""
    reason: str
    """Why, as given in the request."""
    requested_by: str | None
    """User who requested it; null if unknown."""
    state: OverrideState
    """`PENDING`: stored. `DELIVERED`: sent to the job. `APPLIED`: every rank runs it. `REJECTED`:
    the job cannot apply it. `SUPERSEDED`: newer overrides replaced it. `EXPIRED`: `until` was
    reached, or the job ended. `CANCELLED`: cancelled by a user.
    """
    message: str
    """Why it was rejected, superseded or expired, or which ranks have not switched yet."""
    epoch: int | None
    """Epoch in which it first took effect; null before."""
    step: int | None
    """Step at which it first took effect; null before."""
    world_size: int | None
    """Number of workers in the group that runs it now; null before it is applied."""
    acks: int
    """Number of ranks whose communication hook confirmed that it runs the announced plan."""
    ack_list: list[Ack]
    """The confirmation of each rank."""
    created_at: datetime
    """Time of the request."""
    applied_at: datetime | None
    """Time at which every rank had switched; null before."""


class OverrideList(Answer):
    """All overrides of a job, oldest first."""

    items: list[OverrideView]
    """The overrides, including ended ones."""
