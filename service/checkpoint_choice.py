"""Which checkpoints of a job are read for its model: the newest, a named one, or the best."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import Conflict, NotFound
from service.store.models import CheckpointRow
from workers.contract import ObjectiveSpec

BEST = "best"
"""In place of a name: the checkpoint with the best value of the objective."""


def choose_checkpoints(
    rows: Sequence[CheckpointRow], checkpoint: str | None, objective: ObjectiveSpec | None
) -> list[str]:
    """Return the names of the checkpoints to read, the preferred one first.

    Raises:
        Conflict: the job has none, or none with an objective.
        NotFound: it has none of this name.
    """
    if not rows:
        raise Conflict("the job has not saved a checkpoint yet; try again when it has")
    oldest_first = sorted(rows, key=lambda row: (row.generation, row.step))
    if checkpoint is None:
        return [row.name for row in reversed(oldest_first)]
    if checkpoint == BEST:
        return _sort_by_objective(oldest_first, objective)
    if checkpoint not in {row.name for row in rows}:
        raise NotFound(
            f"the job has no checkpoint {checkpoint!r}; GET /api/v1/jobs/{rows[0].job_id}"
            "/checkpoints lists all"
        )
    return [checkpoint]


def _sort_by_objective(
    oldest_first: Sequence[CheckpointRow], objective: ObjectiveSpec | None
) -> list[str]:
    """Return names, the best first, and the older one of equal ones.

    Raises:
        Conflict: no checkpoint has an objective.
    """
    values = {row.name: row.objective for row in oldest_first if row.objective is not None}
    if objective is None:
        raise Conflict(
            "the job has no objective, by which a checkpoint could be the best; leave out"
            " 'checkpoint' for the newest one, or give a name"
        )
    if not values:
        raise Conflict("the job has not saved a checkpoint at the end of an epoch; try again later")
    return sorted(values, key=values.__getitem__, reverse=objective.mode == "max")


__all__ = ["BEST", "choose_checkpoints"]
