"""Request and response models of actions on several jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from service.api.schemas import Answer, Request
from service.domain.access import USER_NAME
from service.domain.jobs import Status
from workers.spec_types import Label

MAX_JOBS = 200
"""Most jobs that one request changes."""


class JobAction(StrEnum):
    """What can be done with several jobs at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"


class BatchRequest(Request):
    """An action on all jobs with some labels that it can change; guest runs are left out."""

    action: Annotated[JobAction, Field(strict=False)]
    """`cancel`, `pause` or `resume` for unfinished jobs, `archive` or `unarchive` for ended ones,
    as for one job.
    """
    labels: dict[Label, Label] = Field(min_length=1, max_length=32)
    """Labels by key; the action is for jobs that have all of them."""
    owner: str | None = Field(default=None, max_length=63, pattern=USER_NAME)
    """Only jobs of this user. Default: null, all that you may change."""
    dry_run: bool = False
    """True lists the jobs and changes nothing. Default: false."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": "cancel", "labels": {"sweep": "lr"}, "dry_run": True}]
        }
    )


class BatchItem(Answer):
    """One job of a batch."""

    id: str
    """ID of the job."""
    name: str
    """Name of the job."""
    status: Status
    """State of the job afterwards; with an error or in a dry run, before."""
    error: str | None
    """Why the job was not changed; null if it was, or in a dry run."""


class BatchView(Answer):
    """Result of an action on several jobs."""

    items: list[BatchItem]
    """Jobs that the action is for, newest first, at most 200; without those for which it was
    requested before.
    """
    more: bool
    """True if there are further ones; repeat the request for them."""
