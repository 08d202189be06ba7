"""Request and response models of actions on several jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from accordion_service.domain.access import USER_NAME
from accordion_service.domain.jobs.statuses import Status
from accordion_service.schemas.jobs import Answer, Request, ResizeRequest
from accordion_workers.spec.types import MAX_PRIORITY, Label, Whole

MAX_JOBS = 200
"""Most jobs that one request changes."""
MAX_BATCH_S = 20.0
"""Seconds after which a request changes no further job. One job may take 30 s more, for which
SQLite waits for its lock.
"""
_JOB_ID = r"^[0-9a-f-]{36}$"


class JobAction(StrEnum):
    """What can be done with several jobs at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    RETRY = "retry"
    RESIZE = "resize"
    CHANGE = "change"
    DELETE = "delete"


class JobsChange(Request):
    """Changes of the labels and the priority of several jobs."""

    labels: dict[Label, Label | None] = Field(default_factory=dict, max_length=32)
    """Labels to set, by key; null removes one. A job has at most 32."""
    priority: Whole | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    """New place in the queue, 0 to 100; larger starts first."""

    @model_validator(mode="after")
    def _check_any(self) -> JobsChange:
        if not self.labels and self.priority is None:
            raise ValueError("nothing to change; give labels or a priority")
        return self


class BatchRequest(Request):
    """An action on all jobs with some labels that it can change; guest runs are left out."""

    action: Annotated[JobAction, Field(strict=False)]
    """What to do with each job, as its own route would: `cancel`, `pause`, `resume` or `resize` for
    unfinished jobs; `archive`, `unarchive` or `delete` for ended ones; `retry` for jobs that failed
    or were cancelled; `change` for all. Archived jobs are left out, except by `unarchive` and
    `delete`.
    """
    labels: dict[Label, Label] = Field(min_length=1, max_length=32)
    """Labels by key; the action is for jobs that have all of them."""
    owner: str | None = Field(default=None, max_length=63, pattern=USER_NAME)
    """Only jobs of this user. Default: null, all that you may change."""
    ids: list[Annotated[str, Field(pattern=_JOB_ID)]] = Field(default=[], max_length=MAX_JOBS)
    """Only these jobs of those with the labels, at most 200; empty for all. Use it to change
    exactly the jobs that a dry run has listed.
    """
    change: JobsChange | None = None
    """For `change`: what to change. Null for other actions."""
    resize: ResizeRequest | None = None
    """For `resize`: how many workers each job may have. Null for other actions."""
    cursor: str | None = Field(default=None, max_length=200)
    """`next_cursor` of the previous answer, to go on after its jobs; null to begin."""
    dry_run: bool = False
    """True lists the jobs and changes nothing. Default: false."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "cancel", "labels": {"sweep": "lr"}, "dry_run": True},
                {"action": "change", "labels": {"sweep": "lr"}, "change": {"priority": 20}},
                {"action": "resize", "labels": {"sweep": "lr"}, "resize": {"min": 1, "max": 2}},
            ]
        }
    )

    @model_validator(mode="after")
    def _check_values(self) -> BatchRequest:
        for action, values in ((JobAction.CHANGE, self.change), (JobAction.RESIZE, self.resize)):
            if (self.action == action) != (values is not None):
                raise ValueError(
                    f"{action} is {'missing' if values is None else 'given'}, and action is"
                    f" {self.action}; give {action} with this action only"
                )
        return self


class BatchItem(Answer):
    """One job of a batch."""

    id: str
    """ID of the job."""
    name: str
    """Name of the job."""
    owner: str | None
    """User who submitted it; null for a guest run."""
    status: Status
    """State of the job afterwards; before, if it was deleted, with an error and in a dry run."""
    error: str | None
    """Why the job was not changed; null if it was, or in a dry run."""


class BatchView(Answer):
    """Result of an action on several jobs."""

    items: list[BatchItem]
    """Jobs that the action is for, newest first, at most 200; without those for which it was
    requested before. Those that could not be changed are listed again by a request without a
    cursor.
    """
    more: bool
    """True if there are further ones; repeat the request with `next_cursor` for them."""
    next_cursor: str | None
    """Cursor of the further ones; null if there are none."""
