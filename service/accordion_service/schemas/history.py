"""Response models for checkpoints, for pages of a job's history, and for what is missing of it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from accordion_service.schemas.jobs import Answer, DecisionView, EpochView


class CheckpointView(Answer):
    """One checkpoint that a job saved."""

    name: str
    """Name of its folder in the job's storage."""
    attempt: int
    """Attempt that saved it."""
    generation: int
    """Worker group that saved it, counted over all attempts."""
    epoch: int
    """First epoch left to train after resuming from it."""
    step: int
    """Optimizer steps that it contains."""
    size_bytes: int
    """Size on storage in bytes."""
    seconds: float
    """Seconds from the step boundary until it was complete on storage."""
    blocked_s: float
    """Part of `seconds` during which training was blocked."""
    objective: float | None = None
    """Value of the metric of the job's `objective` after the epoch that ends here; null within an
    epoch, and without an objective.
    """
    time: datetime
    """Time at which it was complete."""
    kept: bool = True
    """Whether it is still on the storage: the newest `checkpoint.keep` are, and the one with the
    best objective. The workers have removed the others, and after the end of the job the
    service may remove more (`ACCORDION_CHECKPOINT_RETENTION_S`).
    """
    newest: bool = False
    """Whether it is the one that the job would resume from, and `GET /jobs/{id}/model` returns."""
    best: bool = False
    """Whether it has the best value of the job's `objective`."""


class CheckpointList(Answer):
    """Checkpoints of a job, oldest first."""

    items: list[CheckpointView]
    """The checkpoints."""


MAX_PAGE_LAYERS = 10_000
"""Layers of all items of a page together, each of about 200 bytes: 20 items of 500 layers."""


class EpochPage(Answer):
    """One page of finished epochs, in the requested order."""

    items: list[EpochView]
    """Epochs of this page."""
    next_cursor: str | None = None
    """Pass it as `cursor` to get the next page; null on the last page."""
    total: int = 0
    """Number of finished epochs on all pages."""


class DecisionPage(Answer):
    """One page of decisions, in the requested order."""

    items: list[DecisionView]
    """Decisions of this page."""
    next_cursor: str | None = None
    """Pass it as `cursor` to get the next page; null on the last page."""
    total: int = 0
    """Number of decisions on all pages."""


class GapView(Answer):
    """Events that a stream leaves out because the service no longer has them, as the `data` of a
    server-sent event. The ID of that event is `to_seq`, so that the next one follows it.
    """

    type: Literal["gap"] = "gap"
    """Always `gap`."""
    from_seq: int
    """Sequence number of the first missing event."""
    to_seq: int
    """Sequence number of the last missing event."""
    why: str
    """Why they are missing, in a sentence."""
