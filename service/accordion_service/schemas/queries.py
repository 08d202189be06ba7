"""Query parameters: what the lists of jobs and of changes may be filtered by.

The api takes the models as query parameters, the store reads them, and the command line makes an
option of each field; the typed dictionaries are the keywords of `Client.jobs` and `Client.audit`. A
new filter is a field, a keyword and a condition in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, TypedDict

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.statuses import ID_PREFIX, Desired, Kind, Reason, Status
from accordion_service.schemas.jobs import PLAIN
from accordion_workers.spec.types import MAX_PRIORITY


def _refuse_number(given: Any) -> Any:
    """Reject a number, which would count as seconds since 1970 although no schema says so."""
    try:
        float(given)
    except (TypeError, ValueError):
        return given
    raise ValueError("give a time with a time zone, such as 2026-01-01T08:00:00Z")


def _check_action(given: Any) -> Any:
    """Reject an unknown action with the most similar one, or all of them."""
    if given in set(AuditAction):
        return given
    known = [action.value for action in AuditAction]
    similar = get_close_matches(str(given), known, n=1)
    way_out = f"did you mean {similar[0]!r}?" if similar else f"known are {', '.join(known)}"
    raise ValueError(f"the audit log has no action {str(given)[:64]!r}; {way_out}")


_Time = Annotated[AwareDatetime, BeforeValidator(_refuse_number)]
_Action = Annotated[AuditAction, BeforeValidator(_check_action)]
_Word = Annotated[str, Field(max_length=63, pattern=PLAIN)]
_Start = Annotated[str, Field(min_length=1, max_length=63, pattern=PLAIN)]


class QueryParams(BaseModel):
    """Base of query parameters; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid")


class Archived(StrEnum):
    """Which jobs a list has."""

    FALSE = "false"
    TRUE = "true"
    ANY = "any"


class JobQuery(QueryParams):
    """Filters of the list of jobs."""

    status: list[Status] = Field(
        default=[],
        max_length=len(Status),
        description="only jobs with one of these statuses, such as RUNNING",
    )
    name: _Word | None = Field(default=None, description="only jobs of this name")
    id: str | None = Field(
        default=None, pattern=ID_PREFIX, description="only jobs whose ID starts with this"
    )
    label: list[Annotated[str, Field(max_length=127, pattern=PLAIN)]] = Field(
        default=[],
        max_length=32,
        description="only jobs with all of these labels, given as `key:value`",
    )
    owner: _Start | None = Field(default=None, description="only jobs of this user")
    name_prefix: _Start | None = Field(
        default=None, description="only jobs whose name starts with this"
    )
    kind: Kind | None = Field(
        default=None, description="only submitted jobs (`job`), or only guest runs (`guest`)"
    )
    created_after: _Time | None = Field(
        default=None, description="only jobs that were submitted at this time or later"
    )
    created_before: _Time | None = Field(
        default=None, description="only jobs that were submitted before this time"
    )
    started_after: _Time | None = Field(
        default=None, description="only jobs that started at this time or later"
    )
    started_before: _Time | None = Field(
        default=None, description="only jobs that started before this time"
    )
    ended_after: _Time | None = Field(
        default=None, description="only jobs that ended at this time or later"
    )
    ended_before: _Time | None = Field(
        default=None, description="only jobs that ended before this time"
    )
    reason: list[Reason] = Field(
        default=[],
        max_length=len(Reason),
        description="only jobs with one of these reasons, such as NEVER_FITS",
    )
    desired: list[Desired] = Field(
        default=[],
        max_length=len(Desired),
        description="only jobs of which users want one of these states: RUN, PAUSE or CANCEL",
    )
    priority: int | None = Field(
        default=None, ge=0, le=MAX_PRIORITY, description="only jobs with this priority"
    )
    workers: int | None = Field(
        default=None, ge=0, le=1024, description="only jobs that hold this many workers now"
    )
    task: str | None = Field(
        default=None, max_length=200, pattern=PLAIN, description="only jobs with this task"
    )
    method: _Word | None = Field(default=None, description="only jobs with this compression method")
    policy: _Word | None = Field(default=None, description="only jobs with this policy")
    cloned_from: str | None = Field(
        default=None, pattern=r"^[0-9a-f-]{36}$", description="only clones of the job with this ID"
    )
    archived: Archived = Field(
        default=Archived.FALSE,
        description=(
            "`true`: only archived jobs; `any`: all jobs; `false` (default): only jobs that are not"
            " archived"
        ),
    )


class JobKeywords(TypedDict, total=False):
    """Filters of `Client.jobs`: fields of `JobQuery`; None and empty match all."""

    status: Sequence[str]
    name: str | None
    id: str | None
    label: Sequence[str]
    owner: str | None
    name_prefix: str | None
    kind: str | None
    created_after: datetime | None
    created_before: datetime | None
    started_after: datetime | None
    started_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None
    reason: Sequence[str]
    desired: Sequence[str]
    priority: int | None
    workers: int | None
    task: str | None
    method: str | None
    policy: str | None
    cloned_from: str | None


class AuditQuery(QueryParams):
    """Filters of the audit log."""

    user: _Word | None = Field(default=None, description="only changes by this user")
    subject: str | None = Field(
        default=None,
        max_length=192,
        pattern=PLAIN,
        description="only changes of this job, plan, token, user, secret, webhook, node or upload,"
        " or of a quota, such as 'user ada' or 'label team:vision'",
    )
    action: _Action | None = Field(
        default=None, description="only changes of this kind, such as job.cancelled"
    )
    token_id: str | None = Field(
        default=None,
        max_length=16,
        pattern=PLAIN,
        description="only changes with the token that has this ID",
    )
    request_id: str | None = Field(
        default=None,
        max_length=64,
        pattern=PLAIN,
        description="only changes by the request with this ID, as in the service's log",
    )
    time_after: _Time | None = Field(
        default=None, description="only changes made at this time or later"
    )
    time_before: _Time | None = Field(
        default=None, description="only changes made before this time"
    )


class AuditKeywords(TypedDict, total=False):
    """Filters of `Client.audit`: fields of `AuditQuery`; None matches all."""

    user: str | None
    subject: str | None
    action: str | None
    token_id: str | None
    request_id: str | None
    time_after: datetime | None
    time_before: datetime | None
