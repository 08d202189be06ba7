"""Jobs with their epochs, as far as they are compared; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from accordion_service.domain.jobs.statuses import Kind

if TYPE_CHECKING:
    from accordion_workers.spec.public_records import Bytes, EpochRecord


class ComparedSource(Protocol):
    """What is compared: a job of the service, or a simulated one."""

    @property
    def id(self) -> str:
        """Distinguishes it."""

    @property
    def name(self) -> str:
        """Shown for it."""

    @property
    def kind(self) -> Kind:
        """Whether its steps are counted from 0."""

    @property
    def status(self) -> Enum:
        """How it ended, or what it does."""

    @property
    def message(self) -> str:
        """Why it is in this state."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec as submitted."""

    @property
    def priority(self) -> int:
        """Its present priority."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its present labels."""

    @property
    def started_at(self) -> datetime | None:
        """When it began to train."""

    @property
    def ended_at(self) -> datetime | None:
        """When it ended."""

    @property
    def progress(self) -> Any:
        """Its newest progress; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedEpoch:
    """What a comparison needs of a finished epoch: a part that does not grow with the layers."""

    epoch: int
    step: int
    """Optimizer steps of the job at the end of the epoch."""
    world_size: int
    """Number of workers at the end of the epoch."""
    loss: float | None
    """Mean training loss."""
    metrics: Mapping[str, float]
    lr: float
    """Learning rate at the end of the epoch."""
    global_batch: int
    """Samples per step at the end of the epoch."""
    local_steps: int
    """Steps of a round at the end of the epoch."""
    agreement: float | None
    """Agreement of the workers in the last window of the epoch."""
    layers_by_level: Mapping[str, int]
    """Number of layers at each level at the end of the epoch."""
    seconds_by_phase: Mapping[str, float]
    """Seconds of training on rank 0."""
    bytes: Bytes
    """Bytes of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHistory:
    """A job and all of its finished epochs, oldest first."""

    job: ComparedSource
    epochs: Sequence[ComparedEpoch]


def keep_compared(row: EpochRecord) -> ComparedEpoch:
    """Return the part of an epoch that is compared."""
    return ComparedEpoch(
        epoch=row.epoch,
        step=row.step,
        world_size=row.world_size,
        loss=row.loss,
        metrics=row.metrics,
        lr=row.lr,
        global_batch=row.global_batch,
        local_steps=row.local_steps,
        agreement=row.agreement,
        layers_by_level=Counter(row.level_by_layer.values()),
        seconds_by_phase=row.seconds_by_phase,
        bytes=row.bytes,
    )
