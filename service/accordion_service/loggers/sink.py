"""What a kind of logger gets and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from accordion_service.domain.jobs.loggers import RunStatus

Guard = Callable[[str], AbstractContextManager[None]]
"""Returns a block in which this thread connects to the host of a URL, and only where users may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSetup:
    """What a sink is made with."""

    spec: Any
    """The logger's part of the job's spec."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of its secrets, by field of the spec."""
    folder: Path
    """Folder of the job's loggers, which exists, and which only the service can write."""
    number: int
    """Position of the logger in the spec: two loggers of a kind must not share a file."""
    version: int
    """Number that grows with each sink of the same logger."""
    guard: Guard
    wandb_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one epoch."""

    epoch: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]
    """Finite values, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a sink sends in one turn."""

    key: str
    """ID of the run for as long as the job exists: letters, digits and `-`."""
    name: str
    """Name of the job."""
    owner: str
    started_at: float
    """Seconds since 1970."""
    ended_at: float | None
    params: Mapping[str, str]
    """Values of the spec, by their path, without variables and secrets."""
    tags: Mapping[str, str]
    points: Sequence[Point]
    """Epochs that were not sent before. After a kill they may have been sent in part or whole."""
    is_first: bool
    """Whether no epoch was sent before."""
    status: RunStatus
    """Status of the run after these points."""
    run_id: str
    """ID that an earlier turn returned; empty before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """Where the points are now."""

    run_id: str = ""
    location: str
    """URL or path."""


class Sink(Protocol):
    """One logger of one job, from its first turn until the job ends or a turn fails."""

    def __init__(self, setup: SinkSetup) -> None: ...

    def send(self, batch: Batch) -> SentRun:
        """Send a batch, and return when all of it has arrived. A point that an earlier call sent
        is not doubled.
        """
        ...

    def close(self) -> None:
        """Free what the sink holds; nothing is sent."""
        ...
