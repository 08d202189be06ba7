"""Route that downloads the model of a job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import Field

from accordion_service.api.app_state import MAX_WAITING_EXPORTS, AppState, hold_place
from accordion_service.api.callers import require_scope
from accordion_service.api.deps import JobDep, StateDep
from accordion_service.api.model_files import export_model_file
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.domain.file_names import name_file
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.errors import Conflict, Unavailable
from accordion_service.job_inputs.checkpoints import choose_checkpoints, choose_order
from accordion_service.process.child_processes import inherit_environment
from accordion_service.schemas.jobs import PLAIN
from accordion_service.schemas.queries import QueryParams
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import spec_of

MEDIA_TYPE = "application/octet-stream"
router = APIRouter(
    prefix="/jobs/{job_id}/model", tags=["history"], dependencies=[require_scope(Scope.READ)]
)
_HEADERS: dict[str, Any] = {
    "Accordion-Checkpoint": {
        "description": "name of the checkpoint that the model is from",
        "schema": {"type": "string"},
    }
}
_FILE: dict[str, Any] = {
    "description": "the model as a safetensors file",
    "headers": _HEADERS,
    "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
}


class ModelQuery(QueryParams):
    """Query parameters of a model."""

    checkpoint: str | None = Field(
        default=None,
        max_length=128,
        pattern=PLAIN,
        description="name of a checkpoint of the job, or `best`: the one with the best value of the"
        " job's objective (default: the newest one that is complete)",
    )


@router.get(
    "",
    response_class=StreamingResponse,
    responses={200: _FILE, **describe_problems(404, 409)},
)
async def get_model(
    job: JobDep, query: Annotated[ModelQuery, Query()], state: StateDep
) -> StreamingResponse:
    """Download the model of a checkpoint as a safetensors file: the tensors of its `state_dict`.
    The job may still train. Of a script, it is the model that was passed to `session.attach`.
    """
    request = await anyio.to_thread.run_sync(_build_request, job, query.checkpoint, state)
    # The process reads files that jobs wrote, so it gets no setting of the service.
    environment = inherit_environment(lambda name: not name.startswith("ACCORDION_"))
    export = partial(export_model_file, request, environment)
    refusal = f"one model is being exported and {MAX_WAITING_EXPORTS} wait; try again in a minute"
    with hold_place(state.export_places, refusal):
        model = await anyio.to_thread.run_sync(export, limiter=state.model_exports)
    return StreamingResponse(
        model.read_chunks(),
        media_type=MEDIA_TYPE,
        headers={
            "Accordion-Checkpoint": model.checkpoint,
            "Content-Length": str(model.size_bytes),
            "Content-Disposition": f"attachment; filename={name_file(job.name, '.safetensors')}",
        },
    )


def _build_request(job: JobRow, checkpoint: str | None, state: AppState) -> dict[str, Any]:
    """Return the request of an export.

    Raises:
        Conflict: the job has no checkpoint.
        NotFound: it has none of this name.
        Unavailable: the service does not see the storage of jobs.
    """
    if job.kind == Kind.GUEST:
        raise Conflict(
            f"job {job.id} is a guest run, whose checkpoints its own script keeps; read them there"
        )
    spec = spec_of(job)
    rows = state.history.checkpoints(job.id)
    names = choose_checkpoints(rows, checkpoint, spec.objective, status=job.status)
    url, folder = spec.checkpoint.storage, Path(state.settings.storage_of(job.id))
    if url is None and not folder.parent.is_dir():
        raise Unavailable(
            f"the service does not see the storage of jobs, {folder.parent}; mount it there, or"
            " give its place in ACCORDION_STORAGE"
        )
    return {
        "job_id": job.id,
        "url": url,
        "directory": str(folder / "checkpoints"),
        "names": names,
        "order": choose_order(checkpoint, spec.objective),
    }
