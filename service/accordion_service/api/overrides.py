"""Routes that list, add and cancel the overrides of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.conditions import IdempotencyKey, IfMatch, check_if_match, format_etag
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, JobDep, JobId, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.schemas.overrides import (
    CancelQuery,
    OverrideList,
    OverrideRequest,
    OverrideView,
)
from accordion_service.store.writes.idempotency import Idempotency, body_hash
from accordion_service.store.writes.overrides import JobOverrides, RequestedOverride
from accordion_service.views.jobs import override_view

router = APIRouter(prefix="/jobs/{job_id}/overrides", tags=["overrides"])
OverrideId = Annotated[
    str,
    Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="ID of the override"),
]


@router.get(
    "", dependencies=[require_scope(Scope.READ), NO_QUERY], responses=describe_problems(404)
)
def get_overrides(job: JobDep, state: StateDep, response: Response) -> OverrideList:
    """List all overrides of a job, oldest first, with their states."""
    acks = state.overrides.acks(job.id)
    response.headers["ETag"] = format_etag(job)
    return OverrideList(
        items=[override_view(row, acks.get(row.id, [])) for row in state.overrides.list_all(job.id)]
    )


@router.post(
    "",
    status_code=202,
    dependencies=[require_scope(Scope.OVERRIDE), *WRITES_ROWS, NO_QUERY],
    responses=describe_problems(400, 404, 409, 412, 415),
)
def add_override(
    job_id: JobId,
    request: OverrideRequest,
    *,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> OverrideView:
    """Override the compression of some layers, the batch, the local steps, or a setting of the
    optimizer, for a range of epochs.

    For each layer, and for each of the others, the newest override wins.

    The override is `APPLIED` once every rank's communication hook has confirmed the new plan.
    Repeating a request with the same `Idempotency-Key` returns the override that the first one
    created.
    """
    body = request.model_dump(mode="json")
    key = (
        Idempotency(
            key=idempotency_key,
            scope=f"POST overrides of {job_id} by {caller.user}",
            body_hash=body_hash(body),
        )
        if idempotency_key
        else None
    )
    row, _ = JobOverrides(state.database, state.clock, caller).add_override(
        job_id,
        RequestedOverride(**request.model_dump()),
        check=lambda job: check_if_match(if_match, job),
        idempotency=key,
    )
    return override_view(row, state.overrides.acks(job_id).get(row.id, []))


@router.delete(
    "/{override_id}",
    dependencies=[require_scope(Scope.OVERRIDE), *WRITES_ROWS],
    responses=describe_problems(404, 409, 412),
)
def cancel_override(
    job_id: JobId,
    override_id: OverrideId,
    query: Annotated[CancelQuery, Query()],
    *,
    state: StateDep,
    caller: CallerDep,
    if_match: IfMatch = None,
) -> OverrideView:
    """Cancel an override. Its layers return to the policy, or to another override that is still
    active. Repeating the request has no effect.
    """
    writes = JobOverrides(state.database, state.clock, caller)
    row = writes.cancel_override(
        job_id, override_id, lambda job: check_if_match(if_match, job), reason=query.reason
    )
    return override_view(row, state.overrides.acks(job_id).get(row.id, []))
