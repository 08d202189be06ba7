"""Routes that predict the steps of a job before it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.code import check_code
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.api.secrets import check_secrets
from accordion_service.domain.access import Scope
from accordion_service.errors import Invalid
from accordion_service.schemas.plans import PlanView
from accordion_service.schemas.specs import PlanRequest
from accordion_service.store.tables.models import PlanRow
from accordion_service.store.writes.plans import PlanStore
from accordion_workers.tasks import GUEST, SCRIPT

router = APIRouter(prefix="/plans", tags=["plans"], dependencies=[NO_QUERY])
_LOCATION = {"Location": {"description": "URL of the plan", "schema": {"type": "string"}}}
PlanId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="ID of the plan")
]


@router.post(
    "",
    status_code=202,
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    responses={202: {"headers": _LOCATION}, **describe_problems(400, 415)},
)
def add_plan(
    body: PlanRequest, *, request: Request, response: Response, state: StateDep, caller: CallerDep
) -> PlanView:
    """Predict step time and bytes of every method and level of a job on a link.

    One worker's step is measured on the cluster, which takes some seconds and reserves the CPUs of
    one worker; read the URL in `Location` until the status is final. Plans run one at a time.
    """
    if body.spec.workers.max < 2:
        raise Invalid(
            f"workers.max is {body.spec.workers.max}; give at least 2, because one worker exchanges"
            " nothing",
            "/spec/workers/max",
        )
    if body.spec.workers.gpus:
        raise Invalid(
            f"workers.gpus is {body.spec.workers.gpus:g}, and a step is measured on a CPU; set it"
            " to 0 to plan for CPUs, or run the job and ask 'accordion why'"
            " (GET /api/v1/jobs/ID/why)",
            "/spec/workers/gpus",
        )
    if body.spec.task.name in {GUEST, SCRIPT}:
        raise Invalid(
            f"task.name is {body.spec.task.name!r}, whose model is not known before it runs; plan a"
            " built-in task or a class of your own",
            "/spec/task/name",
        )
    if body.spec.pip:
        raise Invalid(
            f"pip names {body.spec.pip[0]}, and a step is measured with the packages of the workers"
            " alone; leave pip out, or run 'accordion plan' on a machine that has the packages",
            "/spec/pip",
        )
    for name, location in body.spec.data.items():
        if not location.startswith("/"):
            raise Invalid(
                f"data names {name!r} at {location}, which is not fetched to measure a step; give a"
                " path on the workers, or run 'accordion plan' on a machine that has the data",
                f"/spec/data/{name}",
            )
    check_code(state, body.spec, place="/spec")
    check_secrets(state, caller, body.spec, pointer="/spec/env")
    row = PlanStore(state.database, state.clock).add(caller, body.model_dump(mode="json"))
    response.headers["Location"] = request.app.url_path_for("get_plan", plan_id=row.id)
    return _plan_view(row)


@router.get(
    "/{plan_id}", dependencies=[require_scope(Scope.READ)], responses=describe_problems(404)
)
def get_plan(plan_id: PlanId, state: StateDep, caller: CallerDep) -> PlanView:
    """Show a plan, with its predictions once it has succeeded."""
    return _plan_view(PlanStore(state.database, state.clock).get(caller, plan_id))


@router.delete(
    "/{plan_id}",
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    responses=describe_problems(404, 409),
)
def cancel_plan(plan_id: PlanId, state: StateDep, caller: CallerDep) -> PlanView:
    """Cancel a plan that waits or is measured. Repeating the request has no effect."""
    return _plan_view(PlanStore(state.database, state.clock).cancel(caller, plan_id))


def _plan_view(row: PlanRow) -> PlanView:
    return PlanView.model_validate(
        {
            "id": row.id,
            "status": row.status,
            "message": row.message,
            "created_at": datetime.fromtimestamp(row.created_at, UTC),
            **(row.answer or {}),
        }
    )
