"""Request and response models of quotas."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from accordion_service.domain.access import USER_NAME
from accordion_service.schemas.jobs import Answer, Request
from accordion_workers.spec.types import Whole

USER_OR_ANY = rf"{USER_NAME}|^\*$"
_WORD = "[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
LABEL = f"^{_WORD}:{_WORD}$"


class QuotaRequest(Request):
    """Limits on what the jobs of a user, or with a label, may hold at the same time. Give either
    `user` or `label`, and at least one limit.
    """

    user: str | None = Field(default=None, max_length=63, pattern=USER_OR_ANY)
    """User whose jobs are limited; `*` is every user without a quota of their own, each separately.
    Default: null.
    """
    label: str | None = Field(default=None, max_length=127, pattern=LABEL)
    """Label of the jobs that are limited, as `key:value`. Default: null."""
    jobs: Whole | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum number of jobs that hold workers; further ones wait. Default: null, no limit."""
    workers: Whole | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum number of workers across these jobs. Default: null, no limit."""
    gpus: float | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum number of GPUs across these jobs. Default: null, no limit."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"user": "ada", "workers": 8}, {"label": "team:vision", "gpus": 16}]
        }
    )

    @model_validator(mode="after")
    def _check_subject_and_limits(self) -> Self:
        if (self.user is None) == (self.label is None):
            raise ValueError("give either 'user' or 'label'")
        if self.jobs is None and self.workers is None and self.gpus is None:
            raise ValueError(
                "give at least one of 'jobs', 'workers' and 'gpus'; DELETE removes a quota"
            )
        return self


class QuotaUsageView(Answer):
    """What the jobs of a quota hold now."""

    jobs: int
    """Jobs that hold workers."""
    workers: int
    """Workers that they hold."""
    gpus: float
    """GPUs that they hold."""


class QuotaView(Answer):
    """One quota. It limits starts and growth: no job loses workers because a quota is lowered."""

    user: str | None
    """User whose jobs are limited; `*` is every user without a quota of their own, each separately;
    null for the quota of a label.
    """
    label: str | None
    """Label of the jobs that are limited, as `key:value`; null for the quota of a user."""
    jobs: int | None
    """Maximum number of jobs that hold workers; null without a limit."""
    workers: int | None
    """Maximum number of workers across these jobs; null without a limit."""
    gpus: float | None
    """Maximum number of GPUs across these jobs; null without a limit."""
    used: QuotaUsageView | None
    """What these jobs hold now; null for the user `*`."""
    used_by_user: dict[str, QuotaUsageView] = Field(default_factory=dict)
    """For `*`: what the jobs of each user without a quota of their own hold, by name; without users
    whose jobs hold nothing, and without those whose jobs you may not see.
    """


class QuotaList(Answer):
    """All quotas: those of users first, each by name."""

    items: list[QuotaView]
    """The quotas."""
