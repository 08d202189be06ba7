"""The part of a job's specification that names the model to start with, and where workers find it.

Loads pydantic, but neither ray nor torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accordion_workers.spec.types import Strict

JOB_ID_PATTERN = r"^[0-9a-f-]+$"
CHECKPOINT_NAME_PATTERN = r"^[A-Za-z0-9._-]+$"


class WarmStartSpec(Strict):
    """The model of another job, with which training starts in place of a random one. Optimizer,
    epochs and compression start anew.
    """

    job: str = Field(max_length=36, pattern=JOB_ID_PATTERN)
    """ID of a job that has saved a checkpoint, and that you may see. Its model must have the same
    parameters and buffers.
    """
    checkpoint: str | None = Field(default=None, max_length=128, pattern=CHECKPOINT_NAME_PATTERN)
    """Name of one of its checkpoints, or `best` for the best one by its objective. Null: the newest
    one when the workers start.
    """


Order = Literal["newest", "min", "max"]
"""Which of a job's checkpoints is read: the newest, or by its objective."""


class ModelSource(Strict):
    """Where a model to start with is stored."""

    job_id: str
    """Job that saved it."""
    url: str | None
    """`checkpoint.storage` of that job; None if it is in `directory`."""
    directory: str
    """Checkpoints of that job, if it has no URL."""
    names: tuple[str, ...]
    """Names of checkpoints, the preferred one first; the first complete one is read."""
    order: Order | None = None
    """Which one is read if the job has removed all of these since; None: none."""


__all__ = ["CHECKPOINT_NAME_PATTERN", "JOB_ID_PATTERN", "ModelSource", "Order", "WarmStartSpec"]
