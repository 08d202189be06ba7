"""Routes that submit, list and show jobs."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.api.app_state import AppState
from service.api.code import check_code
from service.api.conditions import ETAG, IdempotencyKey, format_etag
from service.api.deps import NO_QUERY, WRITES_ROWS, JobDep, QueryParams, RepositoryDep, StateDep
from service.api.problems import describe_problems
from service.api.schemas import PLAIN, DryRun, JobPage, JobView
from service.api.views import job_view
from service.domain.cluster_snapshot import read_cluster_snapshot
from service.domain.jobs import Reason, Status
from service.domain.queue import PendingJob, ResourceRequest, list_worker_resources, plan_queue
from service.domain.waiting_message import format_waiting_message
from service.errors import Invalid
from service.store.idempotency import Idempotency, body_hash
from service.store.job_submission import JobSubmission
from service.store.models import JobRow
from service.store.repository import JobFilter
from service.store.stored_spec import resource_request
from workers.contract import JobSpec
from workers.tasks import GUEST

router = APIRouter(prefix="/jobs", tags=["jobs"])
_LOCATION = {"Location": {"description": "URL of the job", "schema": {"type": "string"}}}


class SubmitQuery(QueryParams):
    """Query parameters of a submission."""

    dry_run: bool = Field(
        default=False,
        description="return the spec with all defaults and whether it would wait; store nothing",
    )


class ListQuery(QueryParams):
    """Query parameters of the list of jobs."""

    status: list[Status] = Field(
        default=[], max_length=len(Status), description="only jobs in one of these states"
    )
    name: str | None = Field(
        default=None, max_length=63, pattern=PLAIN, description="only jobs of this name"
    )
    id: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f-]{1,36}$",
        description="only jobs whose ID starts with this",
    )
    label: list[Annotated[str, Field(max_length=127, pattern=PLAIN)]] = Field(
        default=[],
        max_length=32,
        description="only jobs with all of these labels, given as `key:value`",
    )
    limit: int = Field(default=50, ge=1, le=200, description="jobs per page (default 50)")
    cursor: str | None = Field(
        default=None, max_length=200, description="`next_cursor` of the previous page"
    )


@router.post(
    "",
    status_code=201,
    dependencies=WRITES_ROWS,
    response_model=JobView,
    responses={
        200: {
            "model": JobView | DryRun,
            "description": "result of a dry run, or the job created earlier with this key",
        },
        201: {"headers": ETAG | _LOCATION},
        **describe_problems(400, 415),
    },
)
def submit(
    spec: JobSpec,
    query: Annotated[SubmitQuery, Query()],
    *,
    request: Request,
    response: Response,
    state: StateDep,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Submit a job. It is queued, and starts when its workers fit on the cluster.

    Repeating a request with the same `Idempotency-Key` returns 200 and the job that the first one
    created; the same key with another body is rejected with 422.
    """
    _refuse_guest(spec)
    check_code(state, spec)
    if query.dry_run:
        return Response(_dry_run(state, spec).model_dump_json(), 200, media_type="application/json")
    key = _check_idempotency_key(idempotency_key, "POST /jobs", spec.model_dump(mode="json"))
    job, replayed = JobSubmission(state.database, state.clock).submit(spec, key)
    response.status_code = 200 if replayed else 201
    response.headers["Location"] = request.app.url_path_for("get_one", job_id=job.id)
    response.headers["ETag"] = format_etag(job)
    return job_view(job)


@router.get("", responses=describe_problems())
def get_list(query: Annotated[ListQuery, Query()], state: StateDep) -> JobPage:
    """List jobs, newest first, in pages. Pass `next_cursor` as `cursor` to get the next page."""
    labels = [_parse_label(text, index) for index, text in enumerate(query.label)]
    wanted = JobFilter(
        statuses=[status.value for status in query.status],
        name=query.name,
        id_prefix=query.id,
        labels=labels,
        before=_from_cursor(query.cursor),
        limit=query.limit + 1,
    )
    rows = state.repository.jobs(wanted)
    page = rows[: query.limit]
    first = state.repository.first_without_capacity(page)
    return JobPage(
        items=[job_view(row, first) for row in page],
        next_cursor=_to_cursor(page[-1]) if len(rows) > len(page) else None,
    )


@router.get(
    "/{job_id}",
    dependencies=[NO_QUERY],
    responses={200: {"headers": ETAG}, **describe_problems(404)},
)
def get_one(job: JobDep, repository: RepositoryDep, response: Response) -> JobView:
    """Show one job: spec, state and its reason, progress, newest metrics."""
    response.headers["ETag"] = format_etag(job)
    return job_view(job, repository.first_without_capacity([job]))


def _refuse_guest(spec: JobSpec) -> None:
    if spec.task.name == GUEST:
        raise Invalid(
            f"task.name is {GUEST!r}, which is for runs that register themselves: call"
            " accordion_ray.attach in a Ray Train script, and start the script; or name a task"
            " from GET /api/v1/tasks",
            "/task/name",
        )


def _check_idempotency_key(key: str | None, scope: str, body: Any) -> Idempotency | None:
    return Idempotency(key=key, scope=scope, body_hash=body_hash(body)) if key else None


def _dry_run(state: AppState, spec: JobSpec) -> DryRun:
    cluster = state.repository.cluster()
    ahead = [row for row in state.repository.queue() if row.priority >= spec.priority]
    waiting = [PendingJob(id=row.id, request=resource_request(row)) for row in ahead]
    group = spec.workers
    size = ResourceRequest(
        min=group.min, max=group.max, cpus=group.cpus, gpus=group.gpus, memory=group.memory or 0.0
    )
    waiting.append(PendingJob(id="new", request=size))
    reserved = [
        size
        for row in state.repository.allocated()
        for size in list_worker_resources(resource_request(row), row.workers)
    ]
    nodes, foreign = read_cluster_snapshot(cluster.nodes if cluster else [])
    verdicts = plan_queue(waiting, nodes, reserved, foreign=foreign)
    verdict = verdicts["new"]
    blockers = (id_ for id_, one in verdicts.items() if one.reason is Reason.WAITING_FOR_ROOM)
    message = format_waiting_message(verdict.message, next(blockers, None))
    return DryRun(spec=spec, would_wait=verdict.reason is not Reason.ADMITTED, message=message)


def _parse_label(text: str, index: int) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not (key and colon and value):
        raise Invalid(f"label is {text!r}; give it as key:value", f"query/label/{index}")
    return key, value


def _to_cursor(row: JobRow) -> str:
    return base64.urlsafe_b64encode(f"{row.created_at!r} {row.id}".encode()).decode()


def _from_cursor(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    try:
        created_at, job_id = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
        before = float(created_at)
    except (ValueError, binascii.Error):
        before, job_id = math.nan, ""
    if not (math.isfinite(before) and job_id.isprintable()):
        raise Invalid(
            f"cursor is {cursor!r}; pass next_cursor of the previous page unchanged", "query/cursor"
        )
    return before, job_id
