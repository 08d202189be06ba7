"""Server-sent events of a job and of its logs: numbered without gaps, resumable, with a last event.

Progress events have no number: only the newest value matters, so that clients may miss some.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import StreamingResponse

from accordion_service.api.app_state import AppState
from accordion_service.api.feeds import Frame, Reader, StreamPage, follow_feed, format_frames
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.jobs.removed_output import describe_removed
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import ApiError
from accordion_service.schemas.history import GapView
from accordion_service.store.tables.models import EventRow, JobRow, LogChunkRow
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.views.jobs import event_document, progress_view

MEDIA_TYPE = "text/event-stream"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_BRIEF_PAGE = 100
"""Events that are read at once to be sent in brief; before that, each may have 100 kB."""
_GONE = StreamPage(version=None, newest=0, has_ended=True)


def stream_feed(
    state: AppState,
    caller: Caller,
    reader: Reader,
    *,
    now: StreamPage,
    after: int,
    first: Iterable[str] = (),
) -> StreamingResponse:
    """Stream what follows a number, until the job ends, the client leaves, its token is refused or
    the service stops; `first` is sent before that.
    """
    keepalive_s = state.settings.sse_keepalive_s
    guard = _StreamGuard(state, caller, reader.job_id)

    async def frames() -> AsyncIterator[str]:
        async for text in iterate_in_threadpool(first):
            yield text
        with state.feeds.subscribe(reader, now) as feed:
            async for text in follow_feed(feed, after, keepalive_s=keepalive_s):
                yield text
                if await guard.refuses():
                    return

    return StreamingResponse(frames(), media_type=MEDIA_TYPE, headers=_HEADERS)


class _StreamGuard:
    """Checks now and then whether the caller of an open stream may still see its job."""

    def __init__(self, state: AppState, caller: Caller, job_id: str) -> None:
        self._state = state
        self._caller = caller
        self._job_id = job_id
        self._checked_s = state.monotonic()

    async def refuses(self) -> bool:
        """Check the caller if a keep-alive interval has passed."""
        now = self._state.monotonic()
        if now - self._checked_s < self._state.settings.sse_keepalive_s:
            return False
        self._checked_s = now
        return bool(self._caller.token_id) and await run_in_threadpool(self._is_refused)

    def _is_refused(self) -> bool:
        state = self._state
        try:
            caller = AccountStore(state.database, state.clock).find_by_id(self._caller.token_id)
            job = state.jobs.get(self._job_id)
        except (ApiError, SQLAlchemyError):
            return True  # the client reconnects, and is told why
        if caller is None or job is None:
            return True
        return Scope.READ not in caller.scopes or not caller.may_see(job.owner)


def format_frame(kind: str, data: Any, number: int | None = None) -> str:
    """Format one event; without a number it does not change `Last-Event-ID`."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


class EventReader:
    """Reads the events and the progress of one job."""

    def __init__(self, state: AppState, job_id: str) -> None:
        self._jobs, self._history = state.jobs, state.history
        self.job_id = job_id

    @property
    def key(self) -> Hashable:
        """Identify the stream."""
        return ("events", self.job_id)

    def read(self, after: int) -> StreamPage:
        """Read the events above that number that are kept, and the newest progress."""
        job = self._jobs.get(self.job_id)
        if job is None:
            return _GONE
        rows = self._history.events(self.job_id, after=after) if job.event_seq > after else []
        return self.build_page(job, rows)

    def brief_texts(self, after: int, *, up_to: int) -> Iterator[str]:
        """Yield the events above one number and up to another, without values by layer."""
        while after < up_to:
            rows = self._history.events(self.job_id, after=after, limit=_BRIEF_PAGE)
            frames = [
                Frame(number=row.seq, text=format_frame(row.type, _brief_document(row), row.seq))
                for row in rows
                if row.seq <= up_to
            ]
            if not frames:
                return
            yield format_frames(self, after, frames)
            after = frames[-1].number

    def format_gap(self, first: int, last: int) -> str:
        """Format the frame in place of removed events; its number is that of the last one, so that
        a client that reconnects after it continues with the next event.
        """
        why = (
            "the service keeps only the newest events of a job, and removed these"
            " (ACCORDION_MAX_EVENTS sets how many it keeps, and ACCORDION_HISTORY_RETENTION_S how"
            " long those of an ended job)"
        )
        gap = GapView(from_seq=first, to_seq=last, why=why)
        return format_frame("gap", gap.model_dump(mode="json"), last)

    def build_page(self, job: JobRow, rows: Sequence[EventRow] = ()) -> StreamPage:
        """Build the page of a job from its row and these events."""
        frames = tuple(
            Frame(number=row.seq, text=format_frame(row.type, event_document(row), row.seq))
            for row in rows
        )
        # The job may have ended after its row was read, and before its events were.
        has_ended = Status(job.status) in ENDED or (bool(rows) and rows[-1].type == "end")
        progress = progress_view(job)
        return StreamPage(
            version=job.version,
            newest=max(job.event_seq, rows[-1].seq if rows else 0),
            frames=frames,
            has_ended=has_ended,
            progress=format_frame("progress", progress.model_dump(mode="json"))
            if progress and not has_ended
            else "",
        )


def _brief_document(row: EventRow) -> dict[str, Any]:
    """Build the JSON of an event without values by layer, which are most of it."""
    document = event_document(row)
    data = document["data"]
    if isinstance(data, dict) and isinstance(data.get("decision"), dict):
        data = data | {"decision": _without_layers(data["decision"])}
    return document | {"data": _without_layers(data) if isinstance(data, dict) else data}


def _without_layers(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if not name.endswith("_by_layer")}


class LogReader:
    """Reads the log chunks of one job, for one attempt or all."""

    def __init__(self, state: AppState, job_id: str, attempt: int | None) -> None:
        self._jobs, self._history = state.jobs, state.history
        self.job_id = job_id
        self._attempt = attempt

    @property
    def key(self) -> Hashable:
        """Identify the stream."""
        return ("logs", self.job_id, self._attempt)

    def read(self, after: int) -> StreamPage:
        """Read the chunks above that number."""
        job = self._jobs.get(self.job_id)
        if job is None:
            return _GONE
        rows = self._history.logs(self.job_id, after=after)
        removed = job.log_bytes_removed if rows and rows[0].number > after + 1 else 0
        return self.build_page(job, rows, removed_bytes=removed)

    def format_gap(self, first: int, last: int) -> str:  # noqa: ARG002
        """Format nothing: the first chunk says how much output was removed before it."""
        return ""

    def build_page(
        self, job: JobRow, rows: Sequence[LogChunkRow] = (), *, removed_bytes: int = 0
    ) -> StreamPage:
        """Build the page of a job from its row and these chunks; the end follows after all of
        them. `removed_bytes` is shown in the first chunk.
        """
        frames = (
            Frame(number=row.number, text=self._frame(row, 0 if index else removed_bytes))
            for index, row in enumerate(rows)
        )
        return StreamPage(
            version=job.version,
            newest=max(job.log_number, rows[-1].number if rows else 0),
            frames=tuple(frames),
            has_ended=Status(job.status) in ENDED,
            closing=format_frame(
                "end", {"status": job.status, "reason": job.reason, "message": job.message}
            ),
        )

    def text(self) -> Iterable[str]:
        """Yield all lines that are kept as text; the first one says if older ones were removed."""
        job, after = self._jobs.get(self.job_id), 0
        yield _describe_removed_output(job)
        while rows := self._history.logs(self.job_id, after=after):
            after = rows[-1].number
            yield "".join(log_text(line) for row in rows for line in self._of_attempt(row.lines))

    def tail_text(self, job: JobRow, num_lines: int) -> Iterable[str]:
        """Yield the newest lines as text; if there are fewer, the first one says if older ones were
        removed.
        """
        parts = self.read_tail(num_lines, up_to=job.log_number)
        if sum(len(part.lines) for part in parts) < num_lines:
            yield _describe_removed_output(job)
        yield from (part.format_text() for part in parts)

    def tail_frames(self, job: JobRow, num_lines: int) -> list[str]:
        """Format the newest lines as events; if there are fewer, the first one says how much older
        output was removed.
        """
        parts = self.read_tail(num_lines, up_to=job.log_number)
        is_all = sum(len(part.lines) for part in parts) < num_lines
        removed = job.log_bytes_removed if is_all else 0
        if removed and not parts:
            parts = [LogPart(number=job.log_number, dropped=0, lines=[])]
        return [part.format_frame(0 if at else removed) for at, part in enumerate(parts)]

    def read_tail(self, num_lines: int, *, up_to: int) -> list[LogPart]:
        """Read the newest lines of the chunks up to a number, in order."""
        parts: list[LogPart] = []
        for row in self._iterate_back(up_to):
            lines = self._of_attempt(row.lines)[-num_lines:]
            num_lines -= len(lines)
            if lines:
                parts.append(LogPart(number=row.number, dropped=row.dropped, lines=lines))
            if num_lines == 0:
                break
        return parts[::-1]

    def _iterate_back(self, up_to: int) -> Iterator[LogChunkRow]:
        while rows := self._history.newest_logs(self.job_id, up_to=up_to):
            yield from rows
            up_to = rows[-1].number - 1

    def _frame(self, row: LogChunkRow, removed_bytes: int) -> str:
        lines = self._of_attempt(row.lines)
        part = LogPart(number=row.number, dropped=row.dropped, lines=lines)
        return part.format_frame(removed_bytes)

    def _of_attempt(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line for line in lines if self._attempt is None or line["attempt"] == self._attempt]


def _describe_removed_output(job: JobRow | None) -> str:
    if job is None or not job.log_bytes_removed:
        return ""
    return f"[accordion] {describe_removed(job.log_bytes_removed)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Lines of one log chunk."""

    number: int
    dropped: int
    lines: list[dict[str, Any]]

    def format_frame(self, removed_bytes: int = 0) -> str:
        """Format the event of a stream; `removed_bytes` is older output that was removed."""
        data = {"number": self.number, "lines": self.lines, "dropped": self.dropped}
        return format_frame("log", data | {"removed_bytes": removed_bytes}, self.number)

    def format_text(self) -> str:
        """Format the lines as text."""
        return "".join(map(log_text, self.lines))


def log_text(line: dict[str, Any]) -> str:
    """Format one line with the process that wrote it."""
    who = "supervisor" if line["rank"] is None else f"rank {line['rank']}"
    return f"[{who}] {line['text']}\n"
