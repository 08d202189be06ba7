"""Overrides: people take the wheel of a running job, and hand it back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from service.api.conditions import IdempotencyKey, IfMatch, check_if_match, etag
from service.api.deps import NO_QUERY, WRITES_ROWS, JobDep, JobId, PartsDep, RepositoryDep
from service.api.override_schemas import OverrideList, OverrideRequest, OverrideView
from service.api.problems import problems
from service.api.views import override_view
from service.store.commands import Commands, Idempotency, OverrideWish, body_hash

router = APIRouter(prefix="/jobs/{job_id}/overrides", tags=["overrides"], dependencies=[NO_QUERY])
OverrideId = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]


@router.get("", responses=problems(404))
def get_overrides(job: JobDep, repository: RepositoryDep, response: Response) -> OverrideList:
    """All overrides of the job, oldest first, and how far each got."""
    acks = repository.acks(job.id)
    response.headers["ETag"] = etag(job)
    return OverrideList(
        items=[override_view(row, acks.get(row.id, [])) for row in repository.overrides(job.id)]
    )


@router.post(
    "", status_code=202, dependencies=WRITES_ROWS, responses=problems(400, 404, 409, 412, 415)
)
def add_override(
    job_id: JobId,
    wish: OverrideRequest,
    *,
    parts: PartsDep,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> OverrideView:
    """Decide how hard some layers are compressed, or how large the batch is, from when and until
    when.

    The newest override of a layer wins, and so does the newest of the batch.

    It is `APPLIED` once every rank has said, from its own hook, that it runs the plan. Repeating
    the request with the same `Idempotency-Key` answers with the override that the first one made.
    """
    body = wish.model_dump(mode="json")
    key = (
        Idempotency(
            key=idempotency_key, scope=f"POST overrides of {job_id}", body_hash=body_hash(body)
        )
        if idempotency_key
        else None
    )
    row, _ = Commands(parts.database, parts.clock).add_override(
        job_id,
        OverrideWish(**wish.model_dump()),
        check=lambda job: check_if_match(if_match, job),
        idempotency=key,
    )
    return override_view(row, parts.repository.acks(job_id).get(row.id, []))


@router.delete("/{override_id}", dependencies=WRITES_ROWS, responses=problems(404, 409, 412))
def cancel_override(
    job_id: JobId, override_id: OverrideId, *, parts: PartsDep, if_match: IfMatch = None
) -> OverrideView:
    """Hand the layers of an override back to the policy. Repeating is harmless."""
    commands = Commands(parts.database, parts.clock)
    row = commands.cancel_override(job_id, override_id, lambda job: check_if_match(if_match, job))
    return override_view(row, parts.repository.acks(job_id).get(row.id, []))
