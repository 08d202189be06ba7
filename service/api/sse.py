"""Server-sent events out of the outbox: numbered without gaps, resumable, with a terminal event.

Progress travels beside them without a number: only its newest value counts, and it may be missed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.responses import StreamingResponse

from service.api.parts import Parts
from service.api.views import event_view, progress_view
from service.domain.jobs import ENDED, Status
from service.store.models import JobRow

MEDIA_TYPE = "text/event-stream"
POLL_S = 0.2
"""Distance between two looks at the database for one stream."""
RETRY_MS = 1000
"""How long a client waits before it comes again."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one look at the database gave."""

    frames: tuple[str, ...]
    after: int
    """Number of the newest thing that was sent."""
    ended: bool
    """Nothing will follow."""


Read = Callable[[int], Batch]
"""What came after a number; runs in a thread."""


def stream(parts: Parts, read: Read, after: int) -> StreamingResponse:
    """Answer with what `read` gives until it ends, the client goes, or the service does."""
    return StreamingResponse(_follow(parts, read, after), media_type=MEDIA_TYPE, headers=_HEADERS)


async def _follow(parts: Parts, read: Read, after: int) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    silent_s = 0.0
    while not parts.draining.is_set():
        batch = await anyio.to_thread.run_sync(read, after)
        after = batch.after
        for text in batch.frames:
            yield text
        if batch.ended:
            return
        silent_s = 0.0 if batch.frames else silent_s + POLL_S
        if silent_s >= parts.settings.sse_keepalive_s:
            silent_s = 0.0
            yield ": still here\n\n"
        await anyio.sleep(POLL_S)


def frame(kind: str, data: Any, number: int | None = None) -> str:
    """One event in the wire format; without a number it does not move `Last-Event-ID`."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


class EventReader:
    """Reads one job's events; keeps what progress was sent last."""

    def __init__(self, parts: Parts, job_id: str) -> None:
        self._repository = parts.repository
        self._job_id = job_id
        self._progress_time = 0.0

    def __call__(self, after: int) -> Batch:
        """Events above the number, and the progress where it is news."""
        job = self._repository.job(self._job_id)
        if job is None:
            return Batch(frames=(), after=after, ended=True)
        rows = self._repository.events(self._job_id, after=after) if job.event_seq > after else []
        frames = [frame(row.type, event_view(row).model_dump(mode="json"), row.seq) for row in rows]
        ended = any(row.type == "end" for row in rows)
        after = rows[-1].seq if rows else after
        return Batch(frames=(*frames, *self._news(job, ended)), after=after, ended=ended)

    def _news(self, job: JobRow, ended: bool) -> Iterable[str]:
        view = progress_view(job)
        if ended or job.progress is None or view is None or job.progress["time"] == self._progress_time:
            return ()
        self._progress_time = job.progress["time"]
        return (frame("progress", view.model_dump(mode="json")),)


class LogReader:
    """Reads one job's log chunks, of one attempt or of all."""

    def __init__(self, parts: Parts, job_id: str, attempt: int | None) -> None:
        self._repository = parts.repository
        self._job_id = job_id
        self._attempt = attempt

    def __call__(self, after: int) -> Batch:
        """Chunks above the number; the end once the job is over and all are sent."""
        job = self._repository.job(self._job_id)
        rows = self._repository.logs(self._job_id, after=after)
        frames = [
            frame(
                "log", {"number": row.number, "lines": self._of_attempt(row.lines), "dropped": row.dropped}, row.number
            )
            for row in rows
        ]
        after = rows[-1].number if rows else after
        ended = job is None or (Status(job.status) in ENDED and after >= job.log_number)
        if ended and job is not None:
            frames.append(frame("end", {"status": job.status, "reason": job.reason, "message": job.message}))
        return Batch(frames=tuple(frames), after=after, ended=ended)

    def text(self) -> Iterable[str]:
        """All lines so far, as text."""
        after = 0
        while rows := self._repository.logs(self._job_id, after=after):
            after = rows[-1].number
            yield "".join(log_text(line) for row in rows for line in self._of_attempt(row.lines))

    def _of_attempt(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line for line in lines if self._attempt is None or line["attempt"] == self._attempt]


def log_text(line: dict[str, Any]) -> str:
    """One line of output with who wrote it."""
    who = "supervisor" if line["rank"] is None else f"rank {line['rank']}"
    return f"[{who}] {line['text']}\n"
