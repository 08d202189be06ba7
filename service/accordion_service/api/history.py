"""Routes for the history of a job (attempts, epochs, decisions, checkpoints) and its state now
(schedule, bottleneck, loggers).
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from accordion_service.api.callers import require_scope
from accordion_service.api.conditions import format_etag
from accordion_service.api.deps import NO_QUERY, JobDep, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.errors import Invalid
from accordion_service.schemas.history import (
    MAX_PAGE_LAYERS,
    CheckpointList,
    DecisionPage,
    EpochPage,
)
from accordion_service.schemas.jobs import AttemptList, ScheduleView
from accordion_service.schemas.loggers import LoggerList, LoggerView
from accordion_service.schemas.queries import QueryParams
from accordion_service.schemas.why import WhyView
from accordion_service.store.reads.history import HistoryPage
from accordion_service.store.reads.loggers import read_loggers
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import layer_names
from accordion_service.views.jobs import (
    attempt_view,
    checkpoint_views,
    decision_views,
    epoch_views,
    schedule_view,
)
from accordion_service.views.why import why_view

_MOST = 2**31
"""Exclusive upper bound of epochs and steps: the columns hold 32-bit integers."""

router = APIRouter(
    prefix="/jobs/{job_id}", tags=["history"], dependencies=[require_scope(Scope.READ)]
)


class HistoryQuery(QueryParams):
    """Query parameters of a paged history."""

    limit: int = Field(
        default=100,
        ge=1,
        le=500,
        description="items per page (default 100); a page of a job with more than 20 layers may"
        " have fewer",
    )
    order: Literal["oldest", "newest"] = Field(
        default="oldest", description="which items come first (default: the oldest)"
    )
    cursor: str | None = Field(
        default=None, max_length=200, description="`next_cursor` of the previous page"
    )

    def limit_of(self, job: JobRow) -> int:
        """Return how many items a page of a job holds."""
        return min(self.limit, max(1, MAX_PAGE_LAYERS // max(1, len(layer_names(job)))))

    def page(self, num_columns: int, limit: int) -> HistoryPage:
        """Select the rows to read: one more than the page holds.

        Raises:
            Invalid: the cursor is malformed, or belongs to another list or order.
        """
        beyond = None if self.cursor is None else self._parse_cursor(self.cursor, num_columns)
        return HistoryPage(limit=limit + 1, newest_first=self.order == "newest", beyond=beyond)

    def cursor_after(self, *position: int) -> str:
        """Encode the cursor of the page that follows the item at `position`."""
        text = " ".join([self.order, *map(str, position)])
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _parse_cursor(self, cursor: str, num_columns: int) -> tuple[int, ...]:
        try:
            order, *numbers = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
            position = tuple(int(number) for number in numbers)
        except (ValueError, binascii.Error):
            order, position = "", ()
        if (
            order != self.order
            or len(position) != num_columns
            or not all(0 <= one < _MOST for one in position)
        ):
            detail = (
                f"cursor is {cursor!r}; pass next_cursor of the previous page unchanged, with the"
                " same order"
            )
            raise Invalid(detail, "query/cursor")
        return position


class CheckpointQuery(QueryParams):
    """Query parameters of the list of checkpoints."""

    kept: bool | None = Field(
        default=None,
        description="`true`: only checkpoints that are still on the storage; `false`: only those"
        " that were removed (default: all)",
    )


@router.get("/attempts", dependencies=[NO_QUERY], responses=describe_problems(404))
def get_attempts(job: JobDep, state: StateDep) -> AttemptList:
    """List the attempts of a job, oldest first; another one follows if the nodes are lost."""
    return AttemptList(items=[attempt_view(row) for row in state.history.attempts(job.id)])


@router.get("/epochs", responses=describe_problems(404))
def get_epochs(job: JobDep, query: Annotated[HistoryQuery, Query()], state: StateDep) -> EpochPage:
    """List finished epochs, each exactly once, in pages. Pass `next_cursor` as `cursor` to get the
    next page.
    """
    limit = query.limit_of(job)
    rows = state.history.epochs(job.id, query.page(1, limit))
    items, cursor = rows[:limit], None
    if len(rows) > len(items):
        cursor = query.cursor_after(items[-1].epoch)
    return EpochPage(
        items=epoch_views(items), next_cursor=cursor, total=state.history.count_epochs(job.id)
    )


@router.get("/decisions", responses=describe_problems(404))
def get_decisions(
    job: JobDep, query: Annotated[HistoryQuery, Query()], state: StateDep
) -> DecisionPage:
    """List the decisions that all workers applied, with reasons, in pages. Pass `next_cursor` as
    `cursor` to get the next page.
    """
    limit = query.limit_of(job)
    rows = state.history.decisions(job.id, query.page(2, limit))
    items, cursor = rows[:limit], None
    if len(rows) > len(items):
        cursor = query.cursor_after(items[-1].epoch, items[-1].step)
    overrides = state.overrides.list_all(job.id) if items else []
    return DecisionPage(
        items=decision_views(items, overrides),
        next_cursor=cursor,
        total=state.history.count_decisions(job.id),
    )


@router.get("/checkpoints", responses=describe_problems(404))
def get_checkpoints(
    job: JobDep, query: Annotated[CheckpointQuery, Query()], state: StateDep
) -> CheckpointList:
    """List the checkpoints that the job saved, oldest first: which of them are kept, which is the
    newest, and which has the best objective.
    """
    views = checkpoint_views(job, state.history.checkpoints(job.id))
    return CheckpointList(items=[view for view in views if query.kept in {None, view.kept}])


@router.get("/loggers", dependencies=[NO_QUERY], responses=describe_problems(404))
def get_loggers(job: JobDep, state: StateDep) -> LoggerList:
    """List the loggers of a job: how far each is, where its run is, and why it fails."""
    return LoggerList(
        items=[LoggerView.model_validate(row) for row in read_loggers(state.database, job.id)]
    )


@router.get("/schedule", dependencies=[NO_QUERY], responses=describe_problems(404))
def get_schedule(job: JobDep, state: StateDep, response: Response) -> ScheduleView:
    """Show the level of each layer, its source, and what the policy would choose."""
    response.headers["ETag"] = format_etag(job)
    return schedule_view(job, state.history.newest_decision(job.id))


@router.get("/why", dependencies=[NO_QUERY], responses=describe_problems(404))
def get_why(job: JobDep, state: StateDep) -> WhyView:
    """Say what holds the job up now, its share of a step, and the best change."""
    first = state.queue.first_without_capacity([job])
    return why_view(job, state.history.newest_decision(job.id), first)
