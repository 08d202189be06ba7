"""Routes that submit, clone, list and show jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.code import check_code
from accordion_service.api.conditions import ETAG, IdempotencyKey, format_etag
from accordion_service.api.cursors import format_cursor, parse_cursor
from accordion_service.api.deps import (
    NO_QUERY,
    WRITES_ROWS,
    JobDep,
    StateDep,
)
from accordion_service.api.loggers import check_loggers
from accordion_service.api.priorities import check_priority
from accordion_service.api.problems import describe_problems
from accordion_service.api.secrets import check_secrets
from accordion_service.api.warm_start_checks import check_warm_start
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.capacity.autoscaling import read_autoscaler_record
from accordion_service.domain.capacity.cluster_snapshot import (
    read_avoided,
    read_cluster_snapshot,
    read_placements,
)
from accordion_service.domain.capacity.queue import PendingJob, plan_queue
from accordion_service.domain.capacity.resources import ResourceRequest, sort_custom
from accordion_service.domain.capacity.wait_causes import list_preempted
from accordion_service.domain.capacity.waiting_message import format_start, format_waiting_message
from accordion_service.domain.jobs.statuses import Kind, Reason
from accordion_service.errors import ApiError, Conflict, Invalid
from accordion_service.job_inputs.pip_index import check_packages
from accordion_service.job_inputs.queue import QueueReader
from accordion_service.schemas.jobs import CloneRequest, JobPage, JobView
from accordion_service.schemas.queries import JobQuery, QueryParams
from accordion_service.schemas.specs import DryRun
from accordion_service.store.reads.job_list import JobFilter
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_service.store.tables.stored_spec import stored_spec
from accordion_service.store.writes.idempotency import Idempotency, body_hash
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.views.jobs import job_view
from accordion_workers.common.node_selectors import read_selector
from accordion_workers.records.contract import JobSpec
from accordion_workers.tasks import GUEST

router = APIRouter(prefix="/jobs", tags=["jobs"])
_LOCATION = {"Location": {"description": "URL of the job", "schema": {"type": "string"}}}
_NOT_CREATED: dict[str, Any] = {
    "model": JobView | DryRun,
    "description": "result of a dry run, or the job created earlier with this key",
}
_OPTIONS = (
    ("task", "name", ("options",)),
    ("compression", "method", ("low", "high")),
    ("policy", "name", ("options",)),
    ("training.optimizer", "name", ("lr", "momentum", "nesterov", "betas", "eps")),
    ("training.lr_decay", "shape", ("at", "factor", "floor", "part", "rise", "points")),
)
"""Parts of a spec whose other fields depend on a name: place, name and those fields."""


class SubmitQuery(QueryParams):
    """Query parameters of a submission."""

    dry_run: bool = Field(
        default=False,
        description="return the spec with all defaults and whether it would wait; store nothing",
    )


class _ListQuery(JobQuery):
    """Query parameters of the list of jobs."""

    limit: int = Field(default=50, ge=1, le=200, description="jobs per page (default 50)")
    cursor: str | None = Field(
        default=None, max_length=200, description="`next_cursor` of the previous page"
    )


@router.post(
    "",
    status_code=201,
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    response_model=JobView,
    responses={
        200: _NOT_CREATED,
        201: {"headers": ETAG | _LOCATION},
        **describe_problems(400, 415),
    },
)
def submit(
    spec: JobSpec,
    query: Annotated[SubmitQuery, Query()],
    *,
    request: Request,
    state: StateDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a job. It is queued, and starts when its workers fit on the cluster.

    Repeating a request with the same `Idempotency-Key` returns 200 and the job that the first one
    created; the same key with another body is rejected with 422.
    """
    if query.dry_run:
        _check_spec(state, caller, spec)
        return _show_dry_run(state, caller, spec)
    submission = JobSubmission(state.database, state.clock, caller)
    scope = f"POST /jobs of {caller.user}"
    key = _parse_idempotency_key(idempotency_key, scope, spec)
    try:
        _check_spec(state, caller, spec)
    except ApiError:
        job, replayed = submission.find_replay(key), True
        if job is None:
            raise
    else:
        job, replayed = submission.submit(spec, key)
    return _show_submitted(job, request=request, replayed=replayed)


@router.post(
    "/{job_id}/clone",
    status_code=201,
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    response_model=JobView,
    responses={
        200: _NOT_CREATED,
        201: {"headers": ETAG | _LOCATION},
        **describe_problems(400, 404, 409, 415),
    },
)
def clone(
    job: JobDep,
    body: CloneRequest,
    query: Annotated[SubmitQuery, Query()],
    *,
    request: Request,
    state: StateDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a new job with the spec of this one, which you then own. It starts from the beginning,
    with the present name, labels and priority.

    A new compression method, task, policy or optimizer has its default options, unless you give
    some. Repeating a request with the same `Idempotency-Key` returns 200 and the job that the first
    one created.
    """
    if job.kind == Kind.GUEST:
        raise Conflict(
            f"job {job.id} is a guest run, whose script is not known here; start the script again"
        )
    if query.dry_run:
        spec = _merge_spec(job, body.spec)
        _check_spec(state, caller, spec, place="/spec")
        return _show_dry_run(state, caller, spec)
    submission = JobSubmission(state.database, state.clock, caller)
    scope = f"clone {job.id} for {caller.user}"
    key = _parse_idempotency_key(idempotency_key, scope, body)
    new, replayed = submission.find_replay(key), True
    if new is None:
        spec = _merge_spec(job, body.spec)
        _check_spec(state, caller, spec, place="/spec")
        new, replayed = submission.submit(spec, key, cloned_from=job.id, place="/spec")
    return _show_submitted(new, request=request, replayed=replayed)


@router.get("", dependencies=[require_scope(Scope.READ)], responses=describe_problems())
def get_list(query: Annotated[_ListQuery, Query()], state: StateDep, caller: CallerDep) -> JobPage:
    """List jobs, newest first, in pages. Pass `next_cursor` as `cursor` to get the next page.

    Archived jobs are left out unless `archived` asks for them. Without the scope `read:all`, only
    your own jobs and guest runs are listed.
    """
    _check_labels(query.label)
    wanted = JobFilter(
        **query.model_dump(exclude={"limit", "cursor"}),
        limit=query.limit + 1,
        visible_to=None if Scope.READ_ALL in caller.scopes else caller.user,
        before=parse_cursor(query.cursor, "query/cursor"),
    )
    rows = state.jobs.find(wanted)
    page = rows[: query.limit]
    first = state.queue.first_without_capacity(page)
    return JobPage(
        items=[job_view(row, first) for row in page],
        next_cursor=format_cursor(page[-1]) if len(rows) > len(page) else None,
    )


@router.get(
    "/{job_id}",
    dependencies=[require_scope(Scope.READ), NO_QUERY],
    responses={200: {"headers": ETAG}, **describe_problems(404)},
)
def get_one(job: JobDep, state: StateDep, response: Response) -> JobView:
    """Show one job: spec, state and its reason, progress, newest metrics."""
    response.headers["ETag"] = format_etag(job)
    return job_view(job, state.queue.first_without_capacity([job]))


class _MergedClone(BaseModel):
    """A request for a clone after its changes were merged."""

    spec: JobSpec


def _merge_spec(job: JobRow, changes: dict[str, Any]) -> JobSpec:
    """Return the job's spec, with its present name, labels and priority, and a JSON merge patch.

    Raises:
        RequestValidationError: the result is no valid spec.
    """
    spec = {**stored_spec(job), "labels": stored_labels(job), "priority": job.priority}
    if spec.get("name") is not None:  # otherwise the clone gets a name of its own
        spec["name"] = job.name
    for place, name, options in _OPTIONS:
        if _gives(changes, f"{place}.{name}"):
            # The stored spec has the options of the old name, defaults included.
            spec = _merge_patch(spec, _nest(place, dict.fromkeys(options)))
    spec = _merge_patch(spec, changes)
    try:
        return _MergedClone.model_validate({"spec": spec}).spec
    except ValidationError as error:
        found = [
            {**item, "loc": ("body", *item["loc"]), "kind": _MergedClone} for item in error.errors()
        ]
        raise RequestValidationError(found, body={"spec": spec}) from None


def _gives(changes: Any, path: str) -> bool:
    """Return whether the changes have a value at a path such as `compression.method`."""
    *folders, last = path.split(".")
    for folder in folders:
        changes = changes.get(folder) if isinstance(changes, dict) else None
    return isinstance(changes, dict) and last in changes


def _nest(place: str, value: Any) -> dict[str, Any]:
    """Return a document with a value at a place such as `training.optimizer`."""
    for name in reversed(place.split(".")):
        value = {name: value}
    return dict(value)


def _merge_patch(document: Any, patch: Any) -> Any:
    """Return the document with a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_patch(merged.get(name), value)
    return merged


def _check_spec(state: AppState, caller: Caller, spec: JobSpec, *, place: str = "") -> None:
    """Check what a new job needs besides a valid spec. A repeated request need not pass this
    check: what the first one needed may have been deleted since.
    """
    _refuse_guest(spec, f"{place}/task/name")
    check_code(state, spec, place=place)
    check_packages(state.settings, spec, f"{place}/pip")
    check_priority(state, caller, spec.priority, pointer=f"{place}/priority")
    check_secrets(state, caller, spec, pointer=f"{place}/env")
    check_loggers(state, caller, spec, pointer=f"{place}/loggers")
    check_warm_start(state, caller, spec, pointer=f"{place}/warm_start")


def _show_submitted(job: JobRow, *, request: Request, replayed: bool) -> Response:
    """Return the job as the body. FastAPI would check the view again, in another thread."""
    location = request.app.url_path_for("get_one", job_id=job.id)
    return Response(
        job_view(job).model_dump_json(),
        200 if replayed else 201,
        headers={"Location": location, "ETag": format_etag(job)},
        media_type="application/json",
    )


def _refuse_guest(spec: JobSpec, pointer: str) -> None:
    if spec.task.name == GUEST:
        raise Invalid(
            f"task.name is {GUEST!r}, which is for runs that register themselves: call"
            " accordion_ray.attach in a Ray Train script, and start the script; or name a task"
            " from GET /api/v1/tasks",
            pointer,
        )


def _parse_idempotency_key(key: str | None, scope: str, body: BaseModel) -> Idempotency | None:
    if not key:
        return None
    return Idempotency(key=key, scope=scope, body_hash=body_hash(body.model_dump(mode="json")))


def _show_dry_run(state: AppState, caller: Caller, spec: JobSpec) -> Response:
    found = _dry_run(state, caller, spec)
    return Response(found.model_dump_json(), 200, media_type="application/json")


def _dry_run(state: AppState, caller: Caller, spec: JobSpec) -> DryRun:
    cluster, now = state.cluster.get(), state.clock()
    record = read_autoscaler_record(cluster.autoscaler if cluster else None)
    snapshot = cluster.nodes if cluster else []
    reader = QueueReader(
        state.database, state.settings, record.list_awaiting(now), avoided=read_avoided(snapshot)
    )
    rules, new = reader.rules, _build_pending(reader, now, caller, spec=spec)
    pending = reader.list_pending(reader.read_contenders())
    ahead = [job for job in pending if job.rank >= new.rank]
    nodes, foreign = read_cluster_snapshot(snapshot)
    placed = read_placements(snapshot)
    rows = state.queue.allocated()
    allocated = reader.list_allocated(rows, lambda row: placed.get(row.id))
    if spec.start_at is not None and spec.start_at.timestamp() > now:
        message = format_start(spec.start_at.timestamp())
        return DryRun(spec=spec, would_wait=True, message=message)
    verdicts = plan_queue([*ahead, new], nodes, allocated, foreign=foreign, rules=rules)
    verdict = verdicts[new.id]
    blockers = (id_ for id_, one in verdicts.items() if one.reason is Reason.WAITING_FOR_ROOM)
    blocker = next(blockers, None)
    if blocker in {None, new.id} and verdict.reason is not Reason.ADMITTED:
        losing = list_preempted(new, nodes, allocated, foreign=foreign, rules=rules)
        if losing:
            message = f"starts once less important jobs have released workers: {', '.join(losing)}"
            return DryRun(spec=spec, would_wait=False, message=message)
    message = format_waiting_message(verdict.message, blocker)
    return DryRun(spec=spec, would_wait=verdict.reason is not Reason.ADMITTED, message=message)


def _build_pending(reader: QueueReader, now: float, caller: Caller, *, spec: JobSpec) -> PendingJob:
    """Return a job that is not stored as the rules of the queue see it."""
    group = spec.workers
    return PendingJob(
        id="new",
        request=ResourceRequest(
            min=group.min,
            max=group.max,
            cpus=group.cpus,
            gpus=group.gpus,
            memory=group.memory or 0.0,
            custom=sort_custom(group.resources),
            selector=read_selector(group.node_labels),
            step=spec.num_shards,
        ),
        priority=spec.priority,
        rank=reader.compute_rank(spec.priority, now),
        accounts=reader.rules.quotas.list_accounts(caller.user, spec.labels),
    )


def _check_labels(labels: Sequence[str]) -> None:
    for index, text in enumerate(labels):
        if not all(text.partition(":")):
            raise Invalid(f"label is {text!r}; give it as key:value", f"query/label/{index}")
