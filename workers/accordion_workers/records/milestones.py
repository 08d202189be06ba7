"""Milestones of a job's generations: what later worker groups must know of their records; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from accordion_workers.records.contract import (
    CheckpointRecord,
    EpochRecord,
    Payload,
    Record,
    Started,
)
from accordion_workers.spec.types import Strict


class GroupStart(Strict):
    """Where a worker group began to train."""

    epoch: int
    step: int
    resumed_from: str | None
    """Name of the checkpoint; None if training began from scratch."""
    from_memory: bool = False
    """Whether the workers remembered the state of that name, which was not saved."""


class Milestones(Strict):
    """Milestones of one generation."""

    attempt: int = 0
    """Attempt of its records; 0 if it has none."""
    generation: int
    started: GroupStart | None = None
    """Start of the generation's worker group; None if none began to train."""
    epochs: tuple[int, ...] = ()
    """Epochs whose end was recorded."""
    saved_step: int = 0
    """Steps held by the newest checkpoint; 0 without one."""
    safe_step: int = 0
    """Step of the newest checkpoint, end of an epoch or start from memory; 0 without any."""


def find_milestones(records: Iterable[Record]) -> Iterator[Milestones]:
    """Yield the milestones of each generation that has records; these are in order."""
    for (attempt, generation), group in groupby(
        records, lambda record: (record.attempt, record.generation)
    ):
        payloads = [record.payload for record in group]
        starts = [one for one in payloads if isinstance(one, Started)]
        yield Milestones(
            attempt=attempt,
            generation=generation,
            started=_describe_start(starts[-1]) if starts else None,
            epochs=tuple(one.epoch for one in payloads if isinstance(one, EpochRecord)),
            saved_step=max(
                (one.step for one in payloads if isinstance(one, CheckpointRecord)), default=0
            ),
            safe_step=max(map(safe_step, payloads)),
        )


def safe_step(payload: Payload) -> int:
    """Return the step of a checkpoint, of the end of an epoch, or of a start from memory, which
    shows how far the lost group came; 0 for other records.
    """
    match payload:
        case CheckpointRecord(step=step) | EpochRecord(step=step):
            return step
        case Started(step=step, from_memory=True):
            return step
    return 0


def _describe_start(started: Started) -> GroupStart:
    return GroupStart(
        epoch=started.epoch,
        step=started.step,
        resumed_from=started.resumed_from,
        from_memory=started.from_memory,
    )


__all__ = ["GroupStart", "Milestones", "find_milestones", "safe_step"]
