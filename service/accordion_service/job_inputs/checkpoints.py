"""Which checkpoints of a job are still on its storage, and which ones are read for its model: the
newest, a named one, or the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accordion_service.domain.jobs.status_table import ENDED, is_transition_allowed
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Conflict, NotFound
from accordion_service.store.tables.models import CheckpointRow
from accordion_workers.records.contract import ObjectiveSpec, Order

BEST = "best"
"""In place of a name: the checkpoint with the best value of the objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoints:
    """Names of the checkpoints that are still on the storage of a job."""

    names: frozenset[str] = frozenset()
    newest: str | None = None
    """The one that training resumes from; None if the job has not saved a checkpoint yet."""
    best: str | None = None
    """The one with the best objective; None without an objective, and before the first checkpoint
    at the end of an epoch.
    """


def find_kept(rows: Sequence[CheckpointRow], *, keep: int, mode: str) -> KeptCheckpoints:
    """Return the checkpoints that the workers of a job keep.

    The answer follows from the rule by which workers remove the others (`prune_checkpoints` in
    `workers/accordion_workers/checkpoint/checkpoint_files.py`); the storage is not read.

    Args:
        rows: the checkpoints that the job reported, without those of repeated work.
        keep: number of the newest ones that are kept, at least 1.
        mode: which value of the objective is better, `min` or `max`; empty without an objective.
    """
    if not rows:
        return KeptCheckpoints()
    newest = [row.name for row in _sort_newest_first(rows)]
    best = _rank_by_objective(rows, mode)[:1] if mode else []
    return KeptCheckpoints(
        names=frozenset([*newest[:keep], *best]),
        newest=newest[0],
        best=best[0] if best else None,
    )


def choose_checkpoints(
    rows: Sequence[CheckpointRow],
    checkpoint: str | None,
    objective: ObjectiveSpec | None,
    *,
    status: str,
) -> list[str]:
    """Return the names of the checkpoints to read, the preferred one first.

    Args:
        rows: the checkpoints that the job reported.
        checkpoint: name of one of them, or `best`; None for the newest.
        objective: objective of the job.
        status: status of the job; one that has ended saves no more checkpoints.

    Raises:
        Conflict: the job has none, or none with an objective.
        NotFound: it has none of this name.
    """
    if not rows:
        raise Conflict(_describe_none(status))
    if checkpoint is None:
        return [row.name for row in _sort_newest_first(rows)]
    if checkpoint == BEST:
        return _choose_best(rows, objective, has_ended=Status(status) in ENDED)
    if checkpoint not in {row.name for row in rows}:
        raise NotFound(
            f"the job has no checkpoint {checkpoint!r}; its newest is"
            f" {_sort_newest_first(rows)[0].name!r}, and 'accordion show' or GET"
            f" /api/v1/jobs/{rows[0].job_id}/checkpoints lists all"
        )
    return [checkpoint]


def choose_order(checkpoint: str | None, objective: ObjectiveSpec | None) -> Order | None:
    """Return which checkpoint is wanted if the job removes those of `choose_checkpoints` before
    they are read; None for a named one.
    """
    if checkpoint is None:
        return "newest"
    return objective.mode if checkpoint == BEST and objective is not None else None


def _describe_none(status: str) -> str:
    """Say why a job has no checkpoint, and what to do."""
    if Status(status) not in ENDED:
        return "the job has not saved a checkpoint yet; try again when it has"
    retry = "'accordion retry' or " if is_transition_allowed(Status(status), Status.QUEUED) else ""
    return (
        f"the job is {status} and has saved no checkpoint, so there is no model of it;"
        f" {retry}'accordion clone' trains it again"
    )


def _choose_best(
    rows: Sequence[CheckpointRow], objective: ObjectiveSpec | None, *, has_ended: bool
) -> list[str]:
    """Return names, the best first.

    Raises:
        Conflict: no checkpoint has an objective.
    """
    if objective is None:
        raise Conflict(
            "the job has no objective, by which a checkpoint could be the best; leave out"
            " 'checkpoint' for the newest one, or give a name"
        )
    ranked = _rank_by_objective(rows, objective.mode)
    if not ranked:
        advice = "leave out 'checkpoint' for the newest one" if has_ended else "try again later"
        raise Conflict(f"the job has not saved a checkpoint at the end of an epoch; {advice}")
    return ranked


def _rank_by_objective(rows: Sequence[CheckpointRow], mode: str) -> list[str]:
    """Return the names of the checkpoints with an objective, the best first, and the older one of
    equal ones.
    """
    oldest_first = reversed(_sort_newest_first(rows))
    values = {row.name: row.objective for row in oldest_first if row.objective is not None}
    return sorted(values, key=values.__getitem__, reverse=mode == "max")


def _sort_newest_first(rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    return sorted(rows, key=lambda row: (row.generation, row.step))[::-1]


__all__ = ["BEST", "KeptCheckpoints", "choose_checkpoints", "choose_order", "find_kept"]
