"""The service from Python: one method a route, answers as the records of `service.api.schemas`.

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
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from service.api.cluster_schemas import ClusterView, NamedList, QueueView
from service.api.history_schemas import DecisionPage, EpochPage
from service.api.login_schemas import LoginLinkView
from service.api.override_schemas import OverrideList, OverrideRequest, OverrideView
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
from service.client.answers import check, translate_errors
from service.client.errors import AmbiguousJob, NotFound, Unreachable
from service.client.stream import LogChunk, Stream, Waiter, follow

Answer = TypeVar("Answer", bound=BaseModel)
REQUEST_TIMEOUT_S = 10.0
"""Every route but the streams answers within a second; the rest is room for a busy machine."""
UPLOAD_TIMEOUT_S = 120.0
"""The largest upload is unpacked once before it is answered."""
PAGE_JOBS = 200
"""The most that one page of the list holds."""
PAGE_HISTORY = 100
"""Default number of epochs or decisions per page."""
MAX_NAME = 63
"""Maximum length of a job name, in characters."""
_ID_PREFIX = re.compile(r"[0-9a-f-]{1,36}")
UNFINISHED = (
    "QUEUED",
    "STARTING",
    "RUNNING",
    "RESIZING",
    "RECOVERING",
    "PAUSING",
    "PAUSED",
    "STOPPING",
    "LOST",
)
"""States of jobs that have not ended."""


class Client:
    """One service. `transport` replaces the network, for instance by an application in the same
    process.
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
        # No proxies from the environment: they are for the world outside, and would catch requests
        # to this machine.
        self._http = httpx2.Client(
            base_url=_address(self.url),
            headers=headers,
            transport=transport,
            timeout=REQUEST_TIMEOUT_S,
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

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def login_link(self, page: str = "/") -> str:
        """Create a URL that logs one browser in and opens `page`; it works once, within 15
        minutes.
        """
        return self.url + self._ask(LoginLinkView, "POST", "/login-links", json={"next": page}).path

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> JobView:
        """A new job; with a key, the job that the same request made before."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._ask(JobView, "POST", "/jobs", json=dict(spec), headers=headers)

    def upload(self, archive: bytes) -> CodeView:
        """Keep modules of one's own, as a zip file; a spec names them by the answer's `sha256`, in
        its field `code`.
        """
        headers = {"Content-Type": "application/zip"}
        return self._ask(
            CodeView, "POST", "/code", content=archive, headers=headers, timeout=UPLOAD_TIMEOUT_S
        )

    def dry_run(self, spec: Mapping[str, Any]) -> DryRun:
        """What submitting would do: the spec with its defaults, and whether it would wait."""
        return self._ask(DryRun, "POST", "/jobs", json=dict(spec), params={"dry_run": "true"})

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        name: str | None = None,
        id_prefix: str | None = None,
        label: Sequence[str] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """One page of jobs, newest first; labels are given as `key:value`."""
        params: dict[str, Any] = {
            "status": list(status),
            "name": name,
            "id": id_prefix,
            "label": list(label),
        }
        params |= {"limit": limit, "cursor": cursor}
        return self._ask(
            JobPage, "GET", "/jobs", params={key: value for key, value in params.items() if value}
        )

    def all_jobs(self) -> Iterator[JobView]:
        """Every job, newest first."""
        yield from _every_item(lambda cursor: self.jobs(limit=PAGE_JOBS, cursor=cursor))

    def job(self, job_id: str) -> JobView:
        """One job by its id."""
        return self._ask(JobView, "GET", f"/jobs/{job_id}")

    def find(self, reference: str) -> JobView:
        """One job by its id, the beginning of it, or its name; where several fit, the one that has
        not ended.

        Raises:
            AmbiguousJob: it fits none, or several.
        """
        if len(reference) == 36:
            try:
                return self.job(reference)
            except NotFound:
                pass  # a name may have as many characters as an id
        found = self._matching(reference)
        going = [job for job in found if job.ended_at is None]
        if not going and len(found) >= PAGE_JOBS:
            going = self._matching(reference, status=UNFINISHED)
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

    def _matching(self, reference: str, status: Sequence[str] = ()) -> list[JobView]:
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

    def cancel(self, job_id: str) -> JobView:
        """Cancel; repeating is harmless."""
        return self._ask(JobView, "POST", f"/jobs/{job_id}/cancel")

    def resize(self, job_id: str, least: int, most: int) -> JobView:
        """Allow the job from `least` to `most` workers; repeating is harmless."""
        return self._ask(
            JobView, "POST", f"/jobs/{job_id}/resize", json={"min": least, "max": most}
        )

    def pause(self, job_id: str) -> JobView:
        """Let the job save its state and stand still; repeating is harmless."""
        return self._ask(JobView, "POST", f"/jobs/{job_id}/pause")

    def resume(self, job_id: str) -> JobView:
        """Let a paused job go on; repeating is harmless."""
        return self._ask(JobView, "POST", f"/jobs/{job_id}/resume")

    def attempts(self, job_id: str) -> AttemptList:
        """All runs of the job."""
        return self._ask(AttemptList, "GET", f"/jobs/{job_id}/attempts")

    def epochs(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> EpochPage:
        """One page of finished epochs."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return self._ask(EpochPage, "GET", f"/jobs/{job_id}/epochs", params=params)

    def all_epochs(self, job_id: str) -> Iterator[EpochView]:
        """Every finished epoch, oldest first."""
        yield from _every_item(lambda cursor: self.epochs(job_id, cursor=cursor))

    def decisions(
        self,
        job_id: str,
        *,
        limit: int = PAGE_HISTORY,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> DecisionPage:
        """One page of decisions."""
        params = _page_params(limit, cursor, newest_first=newest_first)
        return self._ask(DecisionPage, "GET", f"/jobs/{job_id}/decisions", params=params)

    def all_decisions(self, job_id: str) -> Iterator[DecisionView]:
        """Every decision, oldest first."""
        yield from _every_item(lambda cursor: self.decisions(job_id, cursor=cursor))

    def checkpoints(self, job_id: str) -> CheckpointList:
        """All saved states."""
        return self._ask(CheckpointList, "GET", f"/jobs/{job_id}/checkpoints")

    def schedule(self, job_id: str) -> ScheduleView:
        """What is in force per layer."""
        return self._ask(ScheduleView, "GET", f"/jobs/{job_id}/schedule")

    def overrides(self, job_id: str) -> OverrideList:
        """All overrides of the job."""
        return self._ask(OverrideList, "GET", f"/jobs/{job_id}/overrides")

    def override(
        self, job_id: str, wish: OverrideRequest, *, idempotency_key: str | None = None
    ) -> OverrideView:
        """Take the wheel."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = wish.model_dump(mode="json")
        return self._ask(
            OverrideView, "POST", f"/jobs/{job_id}/overrides", json=body, headers=headers
        )

    def cancel_override(self, job_id: str, override_id: str) -> OverrideView:
        """Hand the layers of an override back to the policy."""
        return self._ask(OverrideView, "DELETE", f"/jobs/{job_id}/overrides/{override_id}")

    def tasks(self) -> NamedList:
        """Tasks that a spec can name."""
        return self._ask(NamedList, "GET", "/tasks")

    def methods(self) -> NamedList:
        """Compression methods that a spec can name."""
        return self._ask(NamedList, "GET", "/methods")

    def policies(self) -> NamedList:
        """Policies that a spec can name."""
        return self._ask(NamedList, "GET", "/policies")

    def cluster(self) -> ClusterView:
        """Where jobs run."""
        return self._ask(ClusterView, "GET", "/cluster")

    def queue(self) -> QueueView:
        """Who waits, and why."""
        return self._ask(QueueView, "GET", "/queue")

    def ready(self) -> Ready:
        """Whether jobs can be taken and run; not being ready is an answer, not an error."""
        with translate_errors(self.url):
            response = self._http.get("/readyz")
        if response.status_code not in (200, 503):
            check(response)
        return self._parsed(Ready, response)

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventView | ProgressView]:
        """What happens to the job from event `after` on, each number once, over lost connections,
        until the job ends.

        `ProgressView` carries no number: only the newest counts.

        Raises:
            Unreachable: the service stayed away for longer than the waiter's patience.
        """
        stream = Stream(
            http=self._http, path=f"/api/v1/jobs/{job_id}/events", last_id=after or None
        )
        for item in follow(stream, self._waiter):
            record = ProgressView if item.event == "progress" else EventView
            yield record.model_validate_json(item.data)

    def logs(self, job_id: str, *, attempt: int | None = None) -> Iterator[str]:
        """Lines so far, each with who wrote it."""
        params = {"attempt": attempt} if attempt else {}
        with (
            translate_errors(self.url),
            self._http.stream("GET", f"/api/v1/jobs/{job_id}/logs", params=params) as response,
        ):
            check(response)
            yield from response.iter_lines()

    def follow_logs(self, job_id: str, *, attempt: int | None = None) -> Iterator[LogChunk]:
        """Lines as they are written, over lost connections, until the job ends.

        Raises:
            Unreachable: the service stayed away for longer than the waiter's patience.
        """
        params = {"follow": "true"} | ({"attempt": str(attempt)} if attempt else {})
        for item in follow(
            Stream(http=self._http, path=f"/api/v1/jobs/{job_id}/logs", params=params), self._waiter
        ):
            if item.event == "log":
                yield LogChunk.model_validate_json(item.data)

    def _ask(self, record: type[Answer], method: str, path: str, **more: Any) -> Answer:
        with translate_errors(self.url):
            response = self._http.request(method, f"/api/v1{path}", **more)
        check(response)
        return self._parsed(record, response)

    def _parsed(self, record: type[Answer], response: httpx2.Response) -> Answer:
        try:
            return record.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(
                f"what answers at {self.url} is not an Accordion service of this version; is the"
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


def _address(url: str) -> httpx2.URL:
    """The address as it can be used.

    Raises:
        Unreachable: it is none.
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        address = httpx2.URL("")
    # A percent sign stands for a character that no host may have.
    if address.scheme not in {"http", "https"} or not address.host or "%" in address.host:
        raise Unreachable(
            f"{url!r} is no address of a service; give one like http://127.0.0.1:8080"
        )
    return address
