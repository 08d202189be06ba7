"""Python client of the service: one method per route; responses are records of
`service.api.schemas`.

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit({"task": {"name": "digits-mlp"}})
        for event in client.events(job.id):
            ...

On the machine that runs `accordion up`, `service.connection.connect()` finds the address and the
token.

Every method may raise Unreachable, ServiceFailed and Refused (see errors.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from service.api.batch_schemas import BatchView
from service.api.cluster_schemas import ClusterView, NamedList, QueueView, TaskList
from service.api.history_schemas import DecisionPage, EpochPage
from service.api.logger_schemas import LoggerList
from service.api.login_schemas import LoginLinkView
from service.api.override_schemas import OverrideList, OverrideRequest, OverrideView
from service.api.plan_schemas import PlanView
from service.api.schemas import (
    AttemptList,
    CheckpointList,
    CodeView,
    DecisionView,
    DryRun,
    EpochView,
    EventView,
    JobPage,
    JobView,
    ProgressView,
    Ready,
    ScheduleView,
)
from service.api.why_schemas import WhyView
from service.client.account_requests import AccountRequests
from service.client.answers import parse_base_url, raise_for_status, translate_errors
from service.client.errors import AmbiguousJob, NotFound, Unreachable
from service.client.file_download import download_file
from service.client.stream import LogChunk, Stream, Waiter, follow_stream
from service.client.webhook_requests import WebhookRequests
from service.domain.job_status import UNFINISHED

Answer = TypeVar("Answer", bound=BaseModel)
REQUEST_TIMEOUT_S = 10.0
"""Timeout in seconds. Routes other than streams respond within one; the rest is for a busy machine.
"""
UPLOAD_TIMEOUT_S = 120.0
"""Timeout of an upload, which is unpacked once before the response."""
PAGE_JOBS = 200
"""Maximum number of jobs per page."""
PAGE_HISTORY = 100
"""Default number of epochs or decisions per page."""
MAX_NAME = 63
"""Maximum length of a job name, in characters."""
IDLE_CONNECTION_S = 2.0
"""Seconds for which an idle connection is used again.

The service closes one after 5 s. A request that is sent in that moment would fail.
"""
_ID_PREFIX = re.compile(r"[0-9a-f-]{1,36}")


class Client(AccountRequests, WebhookRequests):
    """Client of one service. `transport` replaces the network, for example by an application in the
    same process.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        waiter: Waiter | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Proxies from the environment would intercept requests to this machine.
        self._http = httpx2.Client(
            base_url=parse_base_url(self.url),
            headers=headers,
            transport=transport,
            timeout=REQUEST_TIMEOUT_S,
            limits=httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S),
            trust_env=False,
        )
        self._waiter = waiter or Waiter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def limit_time(self, seconds: float) -> None:
        """Limit how long each later request may take."""
        self._http.timeout = httpx2.Timeout(seconds)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def login_link(self, page: str = "/") -> str:
        """Create a URL that logs one browser in and opens `page`; it works once, within 15
        minutes.
        """
        return (
            self.url
            + self._request(LoginLinkView, "POST", "/login-links", json={"next": page}).path
        )

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> JobView:
        """Submit a job; with a key, a repeated request returns the same job."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._request(JobView, "POST", "/jobs", json=dict(spec), headers=headers)

    def clone(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Submit a new job with the spec of another one and a JSON merge patch."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = {"spec": dict(changes or {})}
        return self._request(JobView, "POST", f"/jobs/{job_id}/clone", json=body, headers=headers)

    def upload(self, archive: bytes) -> CodeView:
        """Upload your own modules as a zip file; name the returned `sha256` in the field `code` of
        a spec.
        """
        headers = {"Content-Type": "application/zip"}
        return self._request(
            CodeView, "POST", "/code", content=archive, headers=headers, timeout=UPLOAD_TIMEOUT_S
        )

    def dry_run(self, spec: Mapping[str, Any]) -> DryRun:
        """Validate a spec: returns it with defaults, and whether the job would wait."""
        return self._request(DryRun, "POST", "/jobs", json=dict(spec), params={"dry_run": "true"})

    def plan(
        self,
        spec: Mapping[str, Any],
        *,
        mbit_per_s: float,
        latency_ms: float = 0.0,
        measure_s: float = 5.0,
    ) -> PlanView:
        """Request predicted steps for `workers.max` workers; poll `plan_result` for the result."""
        link = {"mbit_per_s": mbit_per_s, "latency_ms": latency_ms}
        body = {"spec": dict(spec), "link": link, "measure_s": measure_s}
        return self._request(PlanView, "POST", "/plans", json=body)

    def plan_result(self, plan_id: str) -> PlanView:
        """Get a plan, with its predictions once it has succeeded."""
        return self._request(PlanView, "GET", f"/plans/{plan_id}")

    def cancel_plan(self, plan_id: str) -> PlanView:
        """Cancel a plan that waits or is measured; repeating has no effect."""
        return self._request(PlanView, "DELETE", f"/plans/{plan_id}")

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        name: str | None = None,
        name_prefix: str | None = None,
        id_prefix: str | None = None,
        label: Sequence[str] = (),
        owner: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Get one page of jobs, newest first; labels have the form `key:value`."""
        params: dict[str, Any] = {
            "status": list(status),
            "name": name,
            "name_prefix": name_prefix,
            "id": id_prefix,
            "label": list(label),
            "owner": owner,
        }
        params |= {"limit": limit, "cursor": cursor}
        return self._request(
            JobPage, "GET", "/jobs", params={key: value for key, value in params.items() if value}
        )

    def all_jobs(self) -> Iterator[JobView]:
        """Iterate over all jobs, newest first."""
        yield from _every_item(lambda cursor: self.jobs(limit=PAGE_JOBS, cursor=cursor))

    def job(self, job_id: str) -> JobView:
        """Get one job by its id."""
        return self._request(JobView, "GET", f"/jobs/{job_id}")

    def find(self, reference: str) -> JobView:
        """Find a job by id, id prefix or name; if several match, the unfinished one.

        Raises:
            AmbiguousJob: none matches, or several.
        """
        if len(reference) == 36:
            try:
                return self.job(reference)
            except NotFound:
                pass  # A name can be as long as an id.
        found = self._find_matching(reference)
        going = [job for job in found if job.ended_at is None]
        if not going and len(found) >= PAGE_JOBS:
            going = self._find_matching(reference, status=UNFINISHED)
        if len(found) == 1 or len(going) == 1:
            return (going or found)[0]
        if not found:
            raise AmbiguousJob(f"there is no job {reference!r}; 'accordion list' shows all")
        if not going:
            newest = max(found, key=lambda job: job.created_at)
            message = (
                f"no unfinished job matches {reference!r}; the newest that ended is {newest.id}"
                f" ({newest.status})"
            )
            raise AmbiguousJob(message, newest.id)
        shown = ", ".join(f"{job.id} ({job.status})" for job in found[:5])
        count = f"{len(found)} or more" if len(found) >= PAGE_JOBS else len(found)
        more = " ..." if len(found) > 5 else ""
        raise AmbiguousJob(f"{reference!r} fits {count} jobs: {shown}{more}; give more of the id")

    def _find_matching(self, reference: str, status: Sequence[str] = ()) -> list[JobView]:
        """Newest jobs with that name or id prefix, at most one page of each."""
        found: dict[str, JobView] = {}
        if len(reference) <= MAX_NAME and reference.isprintable():
            found |= {
                job.id: job
                for job in self.jobs(name=reference, status=status, limit=PAGE_JOBS).items
            }
        if _ID_PREFIX.fullmatch(reference):
            found |= {
                job.id: job
                for job in self.jobs(id_prefix=reference, status=status, limit=PAGE_JOBS).items
            }
        return list(found.values())

    def change(
        self,
        job_id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        priority: int | None = None,
    ) -> JobView:
        """Change the name, labels or priority of a job; a label of None is removed."""
        change = {"name": name, "labels": dict(labels or {}), "priority": priority}
        return self._request(JobView, "PATCH", f"/jobs/{job_id}", json=change)

    def cancel(self, job_id: str) -> JobView:
        """Cancel; repeating is harmless."""
        return self._request(JobView, "POST", f"/jobs/{job_id}/cancel")

    def resize(self, job_id: str, min_workers: int, max_workers: int) -> JobView:
        """Allow the job `min_workers` to `max_workers` workers; repeating is harmless."""
        return self._request(
            JobView, "POST", f"/jobs/{job_id}/resize", json={"min": min_workers, "max": max_workers}
        )

    def pause(self, job_id: str) -> JobView:
        """Pause a job after saving a checkpoint; repeating is harmless."""
        return self._request(JobView, "POST", f"/jobs/{job_id}/pause")

    def resume(self, job_id: str) -> JobView:
        """Resume a paused job; repeating is harmless."""
        return self._request(JobView, "POST", f"/jobs/{job_id}/resume")

    def retry(self, job_id: str) -> JobView:
        """Retry a job that failed or was cancelled; repeating is harmless."""
        return self._request(JobView, "POST", f"/jobs/{job_id}/retry")

    def delete_job(self, job_id: str) -> JobView:
        """Delete an ended job with its history and checkpoints, and return it as it was."""
        return self._request(JobView, "DELETE", f"/jobs/{job_id}")

    def act_on_jobs(
        self,
        action: str,
        labels: Mapping[str, str],
        *,
        owner: str | None = None,
        dry_run: bool = False,
    ) -> BatchView:
        """Cancel, pause or resume all unfinished jobs with these labels; repeating is harmless.

        Args:
            action: `cancel`, `pause` or `resume`.
            labels: labels by key; a job must have all of them.
            owner: only jobs of this user.
            dry_run: list the jobs, and change nothing.
        """
        body = {"action": action, "labels": dict(labels), "owner": owner, "dry_run": dry_run}
        return self._request(BatchView, "POST", "/job-actions", json=body)

    def loggers(self, job_id: str) -> LoggerList:
        """Get the loggers of the job."""
        return self._request(LoggerList, "GET", f"/jobs/{job_id}/loggers")

    def attempts(self, job_id: str) -> AttemptList:
        """Get all attempts of the job."""
        return self._request(AttemptList, "GET", f"/jobs/{job_id}/attempts")

    def epochs(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> EpochPage:
        """Get one page of finished epochs."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return self._request(EpochPage, "GET", f"/jobs/{job_id}/epochs", params=params)

    def all_epochs(self, job_id: str) -> Iterator[EpochView]:
        """Iterate over all finished epochs, oldest first."""
        yield from _every_item(lambda cursor: self.epochs(job_id, cursor=cursor))

    def decisions(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> DecisionPage:
        """Get one page of decisions."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return self._request(DecisionPage, "GET", f"/jobs/{job_id}/decisions", params=params)

    def all_decisions(self, job_id: str) -> Iterator[DecisionView]:
        """Iterate over all decisions, oldest first."""
        yield from _every_item(lambda cursor: self.decisions(job_id, cursor=cursor))

    def checkpoints(self, job_id: str) -> CheckpointList:
        """Get all checkpoints."""
        return self._request(CheckpointList, "GET", f"/jobs/{job_id}/checkpoints")

    def download_model(self, job_id: str, file: Path, *, checkpoint: str | None = None) -> str:
        """Write the model of a checkpoint (the newest, or `best` by the job's objective) to a
        safetensors file; return the name of the checkpoint.
        """
        params = {"checkpoint": checkpoint} if checkpoint else {}
        path = f"/api/v1/jobs/{job_id}/model"
        return download_file(self._http, self.url, path=path, file=file, params=params)

    def schedule(self, job_id: str) -> ScheduleView:
        """Get the state of each layer."""
        return self._request(ScheduleView, "GET", f"/jobs/{job_id}/schedule")

    def why(self, job_id: str) -> WhyView:
        """GET /jobs/{id}/why: what holds the job up, and the best change."""
        return self._request(WhyView, "GET", f"/jobs/{job_id}/why")

    def overrides(self, job_id: str) -> OverrideList:
        """Get all overrides of the job."""
        return self._request(OverrideList, "GET", f"/jobs/{job_id}/overrides")

    def override(
        self, job_id: str, request: OverrideRequest, *, idempotency_key: str | None = None
    ) -> OverrideView:
        """Override levels or the global batch."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = request.model_dump(mode="json")
        return self._request(
            OverrideView, "POST", f"/jobs/{job_id}/overrides", json=body, headers=headers
        )

    def cancel_override(self, job_id: str, override_id: str) -> OverrideView:
        """Cancel an override; its layers return to the policy."""
        return self._request(OverrideView, "DELETE", f"/jobs/{job_id}/overrides/{override_id}")

    def tasks(self) -> TaskList:
        """Get the tasks that a spec can name."""
        return self._request(TaskList, "GET", "/tasks")

    def methods(self) -> NamedList:
        """Get the compression methods that a spec can name."""
        return self._request(NamedList, "GET", "/methods")

    def policies(self) -> NamedList:
        """Get the policies that a spec can name."""
        return self._request(NamedList, "GET", "/policies")

    def cluster(self) -> ClusterView:
        """Get the nodes of the cluster."""
        return self._request(ClusterView, "GET", "/cluster")

    def queue(self) -> QueueView:
        """Get the queued jobs, and why they wait."""
        return self._request(QueueView, "GET", "/queue")

    def ready(self) -> Ready:
        """Check whether the service can accept and run jobs; not being ready is no error."""
        with translate_errors(self.url):
            response = self._http.get("/readyz")
        if response.status_code not in (200, 503):
            raise_for_status(response)
        return self._parse_response(Ready, response)

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventView | ProgressView]:
        """Follow the job's events above number `after`, each once, over lost connections, until the
        job ends.

        `ProgressView` has no number: only the newest counts.

        Raises:
            Unreachable: the service was unreachable for longer than the waiter's patience.
        """
        stream = Stream(
            http=self._http, path=f"/api/v1/jobs/{job_id}/events", last_id=after or None
        )
        for item in follow_stream(stream, self._waiter):
            record = ProgressView if item.event == "progress" else EventView
            yield record.model_validate_json(item.data)

    def logs(self, job_id: str, *, attempt: int | None = None) -> Iterator[str]:
        """Get the log lines so far, each with its source."""
        params = {"attempt": attempt} if attempt else {}
        with (
            translate_errors(self.url),
            self._http.stream("GET", f"/api/v1/jobs/{job_id}/logs", params=params) as response,
        ):
            raise_for_status(response)
            yield from response.iter_lines()

    def follow_logs(self, job_id: str, *, attempt: int | None = None) -> Iterator[LogChunk]:
        """Follow the log lines over lost connections, until the job ends.

        Raises:
            Unreachable: the service was unreachable for longer than the waiter's patience.
        """
        params = {"follow": "true"} | ({"attempt": str(attempt)} if attempt else {})
        for item in follow_stream(
            Stream(http=self._http, path=f"/api/v1/jobs/{job_id}/logs", params=params), self._waiter
        ):
            if item.event == "log":
                yield LogChunk.model_validate_json(item.data)

    def _request(self, record: type[Answer], method: str, path: str, **more: Any) -> Answer:
        with translate_errors(self.url):
            response = self._http.request(method, f"/api/v1{path}", **more)
        raise_for_status(response)
        return self._parse_response(record, response)

    def _parse_response(self, record: type[Answer], response: httpx2.Response) -> Answer:
        try:
            return record.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(
                f"the program at {self.url} is not an Accordion service of this version; is the"
                " address right?"
            ) from error


def _page_params(limit: int, cursor: str | None, *, newest_first: bool) -> dict[str, Any]:
    return {"limit": limit, "order": "newest" if newest_first else "oldest"} | (
        {"cursor": cursor} if cursor else {}
    )


def _every_item(read: Callable[[str | None], Any]) -> Iterator[Any]:
    """Iterate over the items of all pages."""
    cursor = None
    while True:
        page = read(cursor)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return
