"""Route with the report of a job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

import anyio
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, StreamingResponse

from accordion_service.api.app_state import MAX_WAITING_REPORTS, AppState, hold_place
from accordion_service.api.callers import require_scope
from accordion_service.api.dashboard.report_content import REPORTED_EVENTS, ReportSource
from accordion_service.api.dashboard.report_frame import ReportPage
from accordion_service.api.dashboard.report_page import build_report, choose_limits
from accordion_service.api.deps import NO_QUERY, JobDep, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.api.sse import log_text
from accordion_service.domain.access import Scope
from accordion_service.domain.file_names import name_file
from accordion_service.store.reads.report import read_report_rows
from accordion_service.store.tables.models import EventRow, JobRow, LogChunkRow
from accordion_service.store.tables.stored_documents import stored_layers
from accordion_service.views.jobs import (
    attempt_view,
    decision_views,
    epoch_views,
    event_document,
    job_view,
    override_view,
    schedule_view,
)
from accordion_service.views.why import why_view

_MAX_LINES = 200
"""Number of the newest lines of output in a report."""
_PIECE_BYTES = 1 << 18
"""Bytes that are sent at once, so that a slow client does not fill the memory."""
router = APIRouter(
    prefix="/jobs/{job_id}/report",
    tags=["history"],
    dependencies=[require_scope(Scope.READ), NO_QUERY],
)
_PAGE: dict[str, Any] = {
    "description": "the report",
    "content": {"text/html": {"schema": {"type": "string"}}},
}


@router.get("", response_class=HTMLResponse, responses={200: _PAGE, **describe_problems(404)})
async def get_report(job: JobDep, state: StateDep) -> StreamingResponse:
    """Get one HTML page of about 5 MB with the result of a job or guest run, its charts, overrides,
    decisions, attempts and newest output. It loads nothing, so it can be opened from a disk or sent
    by mail. Values that could be secret are replaced by `***`: of environment variables, under
    names such as `api_key`, arguments of scripts, and logins and queries in URLs. Other secrets in
    the output or in names stay. Of a long history, epochs at equal distances are shown.
    """
    refusal = f"one report is being built and {MAX_WAITING_REPORTS} wait; try again in a minute"
    with hold_place(state.report_places, refusal):
        page = await anyio.to_thread.run_sync(_build_page, job, state, limiter=state.report_builds)
    return StreamingResponse(
        _split_pieces(page.pieces),
        media_type="text/html; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "Content-Length": str(sum(map(len, page.pieces))),
            "Content-Disposition": f'inline; filename="{name_file(job.name, ".html")}"',
            "Content-Security-Policy": f"{page.policy}; frame-ancestors 'none'",
        },
    )


def _build_page(job: JobRow, state: AppState) -> ReportPage:
    limits = choose_limits(len(stored_layers(job)))
    rows = read_report_rows(state.database, job.id, limits, event_types=REPORTED_EVENTS)
    newest, first = state.history.newest_decision(job.id), state.queue.first_without_capacity([job])
    source = ReportSource(
        job=job_view(job, first),
        schedule=schedule_view(job, newest),
        why=why_view(job, newest, first),
        epochs=epoch_views(rows.history.epochs),
        num_epochs=rows.history.num_epochs,
        decisions=decision_views(rows.history.decisions, rows.overrides),
        num_decisions=rows.history.num_decisions,
        overrides=[override_view(row, []) for row in rows.overrides],
        num_overrides=rows.num_overrides,
        attempts=[attempt_view(row) for row in rows.attempts],
        num_attempts=rows.num_attempts,
        events=_list_events(rows.events),
        num_events=rows.num_events,
        log_lines=_list_lines(rows.log_chunks),
        events_removed=rows.events_removed,
        log_bytes_removed=rows.log_bytes_removed,
        written_at=datetime.fromtimestamp(state.clock(), UTC),
    )
    return build_report(source)


def _list_events(rows: Iterable[EventRow]) -> list[dict[str, Any]]:
    """Return readable events; of others the time stays a number, or the data are no object."""
    documents = map(event_document, rows)
    return [
        document
        for document in documents
        if isinstance(document["time"], str) and isinstance(document["data"], dict)
    ]


def _list_lines(chunks: Iterable[LogChunkRow]) -> list[str]:
    """Return the newest readable lines."""
    lines = [
        log_text(line).rstrip("\n")
        for chunk in chunks
        if isinstance(chunk.lines, list)
        for line in chunk.lines
        if isinstance(line, dict) and {"rank", "text"} <= line.keys()
    ]
    return lines[-_MAX_LINES:]


async def _split_pieces(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), _PIECE_BYTES):
            yield piece[start : start + _PIECE_BYTES]
