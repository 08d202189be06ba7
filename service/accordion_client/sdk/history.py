"""Requests for the history of a job, its model, its overrides and its streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from accordion_client.sdk.file_download import DOWNLOAD_TIMEOUT_S, REPORT_TIMEOUT_S, download_file
from accordion_client.sdk.query_params import format_params
from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_iterator, shared_method
from accordion_client.sdk.stream import LogChunk, Stream, follow_stream
from accordion_service.schemas.history import CheckpointList, DecisionPage, EpochPage, GapView
from accordion_service.schemas.jobs import (
    AttemptList,
    DecisionView,
    EpochView,
    EventView,
    ProgressView,
    ScheduleView,
)
from accordion_service.schemas.overrides import OverrideList, OverrideRequest, OverrideView

if TYPE_CHECKING:
    from accordion_service.schemas.history_columns import HistoryView
    from accordion_service.schemas.loggers import LoggerList
    from accordion_service.schemas.why import WhyView

PAGE_HISTORY = 100
"""Default number of epochs or decisions per page."""
_EVENT_TYPES = frozenset(get_args(EventView.model_fields["type"].annotation))
_VIEWS: Mapping[str, type[ProgressView | GapView | EventView]] = {
    "progress": ProgressView,
    "gap": GapView,
    **dict.fromkeys(_EVENT_TYPES, EventView),
}
"""Views of server-sent events, by type."""


class HistoryRequests(RequestSender):
    """Part of `Client` and `AsyncClient`."""

    @shared_method
    async def attempts(self, job_id: str) -> AttemptList:
        """Get all attempts of the job."""
        return await self._request(AttemptList, "GET", f"/jobs/{job_id}/attempts")

    @shared_method
    async def loggers(self, job_id: str) -> LoggerList:
        """Get the loggers of the job."""
        from accordion_service.schemas.loggers import LoggerList

        return await self._request(LoggerList, "GET", f"/jobs/{job_id}/loggers")

    @shared_method
    async def epochs(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> EpochPage:
        """Get one page of finished epochs."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return await self._request(EpochPage, "GET", f"/jobs/{job_id}/epochs", params=params)

    @shared_iterator
    async def all_epochs(self, job_id: str) -> AsyncGenerator[EpochView, None]:
        """Iterate over all finished epochs, oldest first."""
        params = _page_params(PAGE_HISTORY, None, newest_first=False)
        async for page in self._read_pages(EpochPage, f"/jobs/{job_id}/epochs", params):
            for epoch in page.items:
                yield epoch

    @shared_method
    async def decisions(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> DecisionPage:
        """Get one page of decisions."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return await self._request(DecisionPage, "GET", f"/jobs/{job_id}/decisions", params=params)

    @shared_iterator
    async def all_decisions(self, job_id: str) -> AsyncGenerator[DecisionView, None]:
        """Iterate over all decisions, oldest first."""
        params = _page_params(PAGE_HISTORY, None, newest_first=False)
        async for page in self._read_pages(DecisionPage, f"/jobs/{job_id}/decisions", params):
            for decision in page.items:
                yield decision

    @shared_method
    async def history(self, job_id: str, *, points: int = 400) -> HistoryView:
        """Get what charts of the whole history show, in columns of at most `points` epochs."""
        from accordion_service.schemas.history_columns import HistoryView

        path = f"/jobs/{job_id}/history"
        return await self._request(HistoryView, "GET", path, params={"points": points})

    @shared_method
    async def checkpoints(self, job_id: str, *, kept: bool | None = None) -> CheckpointList:
        """Get all checkpoints, or only those that are kept (True) or were removed (False)."""
        params = {} if kept is None else {"kept": str(kept).lower()}
        path = f"/jobs/{job_id}/checkpoints"
        return await self._request(CheckpointList, "GET", path, params=params)

    @shared_method
    async def download_model(
        self, job_id: str, file: Path, *, checkpoint: str | None = None
    ) -> str:
        """Write the model of a checkpoint (the newest, or `best` by the job's objective) to a
        safetensors file; return the name of the checkpoint.
        """
        params = {"checkpoint": checkpoint} if checkpoint else {}
        path = f"/jobs/{job_id}/model"
        return await download_file(
            self._open(path, params=params, timeout=DOWNLOAD_TIMEOUT_S), file
        )

    @shared_method
    async def download_report(self, job_id: str, file: Path) -> None:
        """Write the report of the job, one HTML page, to a file."""
        await download_file(self._open(f"/jobs/{job_id}/report", timeout=REPORT_TIMEOUT_S), file)

    @shared_method
    async def schedule(self, job_id: str) -> ScheduleView:
        """Get the state of each layer."""
        return await self._request(ScheduleView, "GET", f"/jobs/{job_id}/schedule")

    @shared_method
    async def why(self, job_id: str) -> WhyView:
        """GET /jobs/{id}/why: what holds the job up, and the best change."""
        from accordion_service.schemas.why import WhyView

        return await self._request(WhyView, "GET", f"/jobs/{job_id}/why")

    @shared_method
    async def overrides(self, job_id: str) -> OverrideList:
        """Get all overrides of the job."""
        return await self._request(OverrideList, "GET", f"/jobs/{job_id}/overrides")

    @shared_method
    async def override(
        self, job_id: str, request: OverrideRequest, *, idempotency_key: str | None = None
    ) -> OverrideView:
        """Override levels, the global batch, the local steps or the optimizer."""
        path, body = f"/jobs/{job_id}/overrides", request.model_dump(mode="json")
        return await self._create(OverrideView, path, idempotency_key, json=body)

    @shared_method
    async def cancel_override(
        self, job_id: str, override_id: str, *, reason: str = ""
    ) -> OverrideView:
        """Cancel an override; its layers return to the policy."""
        path, params = f"/jobs/{job_id}/overrides/{override_id}", {"reason": reason}
        return await self._request(OverrideView, "DELETE", path, params=params if reason else None)

    @shared_iterator
    async def events(
        self, job_id: str, *, after: int = 0
    ) -> AsyncGenerator[EventView | ProgressView | GapView, None]:
        """Follow the job's events above number `after`, each once, over lost connections, until the
        job ends.

        `ProgressView` has no number: only the newest counts. `GapView` stands for events that the
        service no longer has. Events of types that only newer versions know are left out.

        Raises:
            Unreachable: the service was unreachable for longer than the waiter's patience, or its
                stream was closed again and again for as long, before any event arrived.
        """
        stream = Stream(
            http=self._http, path=f"/api/v1/jobs/{job_id}/events", last_id=after or None
        )
        async with aclosing(follow_stream(stream, self._waiter)) as items:
            async for item in items:
                if item.event in _VIEWS:
                    yield _VIEWS[item.event].model_validate_json(item.data)

    @shared_iterator
    async def logs(
        self, job_id: str, *, attempt: int | None = None, tail: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Get the log lines so far, or the `tail` newest of them, each with its source."""
        params = format_params({"attempt": attempt, "tail": tail})
        async with self._open(f"/jobs/{job_id}/logs", params=params) as response:
            async for line in response.aiter_lines():
                yield line

    @shared_iterator
    async def follow_logs(
        self, job_id: str, *, attempt: int | None = None, tail: int | None = None
    ) -> AsyncGenerator[LogChunk, None]:
        """Follow the log lines over lost connections, until the job ends; with `tail`, begin with
        so many of the newest.

        Raises:
            Unreachable: the service was unreachable for longer than the waiter's patience.
        """
        params = {"follow": "true"}
        params |= {"attempt": str(attempt)} if attempt else {}
        params |= {"tail": str(tail)} if tail else {}
        stream = Stream(http=self._http, path=f"/api/v1/jobs/{job_id}/logs", params=params)
        async with aclosing(follow_stream(stream, self._waiter)) as items:
            async for item in items:
                if item.event == "log":
                    yield LogChunk.model_validate_json(item.data)


def _page_params(limit: int, cursor: str | None, *, newest_first: bool) -> dict[str, Any]:
    return {"limit": limit, "order": "newest" if newest_first else "oldest"} | (
        {"cursor": cursor} if cursor else {}
    )
