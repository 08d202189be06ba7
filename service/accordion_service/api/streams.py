"""Routes that stream the events and logs of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.conditions import last_event_id
from accordion_service.api.deps import JobDep, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.api.sse import MEDIA_TYPE, EventReader, LogReader, stream_feed
from accordion_service.domain.access import Scope
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Invalid
from accordion_service.schemas.queries import QueryParams

router = APIRouter(
    prefix="/jobs/{job_id}", tags=["streams"], dependencies=[require_scope(Scope.READ)]
)
LastEventIdHeader = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=64, description="number of the last event received"),
]
_EVENT_DATA = {
    "type": "string",
    "description": (
        "the event as JSON; of type `progress`, the job's `progress`; of type `gap`, which events"
        " are missing"
    ),
    "contentMediaType": "application/json",
    "contentSchema": {
        "anyOf": [
            {"$ref": "#/components/schemas/EventView"},
            {"$ref": "#/components/schemas/ProgressView"},
            {"$ref": "#/components/schemas/GapView"},
        ]
    },
}
_LOG_DATA = {
    "type": "string",
    "description": (
        "JSON: of type `log`, `number`, `dropped` (lines that were not kept),"
        " `removed_bytes` (older output of the job that was removed, if the chunk does not follow"
        " the one before it; else 0) and `lines`, each with `attempt`, `rank` (null for the"
        " supervisor), `time` (Unix seconds) and `text`; of type `end`, the job's `status`,"
        " `reason` and `message`"
    ),
    "contentMediaType": "application/json",
}


def _stream_schema(data: dict[str, Any]) -> dict[str, Any]:
    properties = {
        "data": data,
        "event": {"type": "string", "description": "type of the event"},
        "id": {"type": "string", "description": "number of the event; pass it as Last-Event-ID"},
        "retry": {"type": "integer", "description": "milliseconds before a client reconnects"},
    }
    schema = {
        "type": "object",
        "description": "one server-sent event; `data` is JSON",
        "properties": properties,
    }
    return {MEDIA_TYPE: {"schema": schema}}


_OVER: dict[int | str, dict[str, Any]] = {
    204: {"description": "the job has ended, and nothing follows that number"}
}


class EventsQuery(QueryParams):
    """Query parameters of the event stream."""

    after: int = Field(
        default=0, ge=0, description="start after this event; Last-Event-ID takes precedence"
    )
    last: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="start with at most this many of the newest events that are kept",
    )
    brief: bool = Field(
        default=False,
        description="leave out the values by layer (`..._by_layer`) of events that exist already,"
        " also after `Last-Event-ID`",
    )

    def first_after(self, newest: int, *, removed: int) -> int:
        """Return the sequence number after which the stream starts. With `last`, it leaves out
        nothing that was asked for, so it starts after the events up to `removed`, without a gap.
        """
        return self.after if self.last is None else max(self.after, newest - self.last, removed)


class LogsQuery(QueryParams):
    """Query parameters of the logs."""

    attempt: int | None = Field(default=None, ge=1, description="only lines of this attempt")
    follow: bool = Field(
        default=False, description="stream new lines as server-sent events until the job ends"
    )
    tail: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="only this many of the newest lines; with `follow`, also those that follow",
    )


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": _stream_schema(_EVENT_DATA), "description": "stream of events"},
        **_OVER,
        **describe_problems(404),
    },
)
def get_events(
    job: JobDep,
    query: Annotated[EventsQuery, Query()],
    *,
    state: StateDep,
    caller: CallerDep,
    last_event_id_: LastEventIdHeader = None,
) -> Response:
    """Stream server-sent events of type `status`, `epoch`, `decision`, `override`, `workers`,
    `checkpoint`, `packages`, `change` and `log`; the stream closes after the event `end`, which
    only events of type `archive` and `change` may follow.

    IDs increase by one. A client that reconnects with `Last-Event-ID` receives every event exactly
    once. Only the newest events of a long job are kept (`ACCORDION_MAX_EVENTS`), and only the last
    ones of a job that ended a while ago (`ACCORDION_HISTORY_RETENTION_S`): an event of type `gap`
    is sent in place of removed ones, which it names, and has the ID of the last of them.
    `progress` events have no ID and may be skipped: only the newest matters. Later versions may add
    types; skip those that you do not know.
    """
    after = last_event_id(last_event_id_, job.event_seq)
    if after is None:
        after = query.first_after(job.event_seq, removed=job.events_removed)
    if after > job.event_seq:
        raise Invalid(f"after is {after}; the newest event is {job.event_seq}", "query/after")
    if Status(job.status) in ENDED and after >= job.event_seq:
        return Response(status_code=204)
    reader = EventReader(state, job.id)
    first: Iterable[str] = ()
    if query.brief:
        first, after = reader.brief_texts(after, up_to=job.event_seq), job.event_seq
    return stream_feed(state, caller, reader, now=reader.build_page(job), after=after, first=first)


@router.get(
    "/logs",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}, **_stream_schema(_LOG_DATA)},
            "description": "log lines",
        },
        **_OVER,
        **describe_problems(404),
    },
)
def get_logs(
    job: JobDep,
    query: Annotated[LogsQuery, Query()],
    *,
    state: StateDep,
    caller: CallerDep,
    last_event_id_: LastEventIdHeader = None,
) -> Response:
    """Show the output of the workers and their supervisor: as text, or with `follow` as a stream of
    server-sent events.
    """
    reader = LogReader(state, job.id, query.attempt)
    if not query.follow:
        text = reader.text() if query.tail is None else reader.tail_text(job, query.tail)
        return StreamingResponse(text, media_type="text/plain; charset=utf-8")
    after = last_event_id(last_event_id_, job.log_number)
    if after is not None and Status(job.status) in ENDED and after >= job.log_number:
        return Response(status_code=204)
    first: list[str] = []
    if query.tail is not None and after is None:
        first, after = reader.tail_frames(job, query.tail), job.log_number
    now = reader.build_page(job)
    return stream_feed(state, caller, reader, now=now, after=after or 0, first=first)
