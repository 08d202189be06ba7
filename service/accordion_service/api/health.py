"""Liveness, readiness and Prometheus metrics; outside `/api/v1`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Response
from sqlalchemy.exc import SQLAlchemyError

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import require_scope
from accordion_service.api.deps import NO_QUERY, StateDep
from accordion_service.api.problems import describe_problems, explain_database_error
from accordion_service.api.process_metrics import ProcessMetrics
from accordion_service.domain.access import Scope
from accordion_service.errors import Unavailable
from accordion_service.schemas.jobs import CheckResult, Ready
from accordion_service.store.migrations import current, head
from accordion_service.views.metrics import metrics_response

router = APIRouter(tags=["health"], dependencies=[NO_QUERY])
_HEAD = head()


@router.get("/livez", responses=describe_problems())
async def livez() -> dict[str, bool]:
    """Check that the process responds; nothing else is checked."""
    return {"alive": True}


@router.get(
    "/readyz",
    responses={503: {"model": Ready}, **{k: v for k, v in describe_problems().items() if k != 503}},
)
def readyz(state: StateDep, response: Response) -> Ready:
    """Check whether jobs can be accepted and run: service, database, migrations, scheduler, Ray."""
    checks = {"service": _check_service(state), "database": _check_database(state)}
    if checks["database"].ok:
        checks |= {
            "migrations": _check_migrations(state),
            "scheduler": _check_scheduler(state),
            "ray": _check_ray(state),
        }
    ready = all(check.ok for check in checks.values())
    response.status_code = 200 if ready else 503
    return Ready(ready=ready, checks=checks)


async def _get_threads() -> CapacityLimiter:
    """Return the limiter of the threads that run routes; only the event loop knows it."""
    return to_thread.current_default_thread_limiter()


@router.get(
    "/metrics",
    dependencies=[require_scope(Scope.METRICS)],
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **describe_problems(),
    },
    response_class=Response,
)
def metrics(
    state: StateDep, threads: Annotated[CapacityLimiter, Depends(_get_threads)]
) -> Response:
    """Export all metrics for Prometheus. An ended job is exported for another
    `ACCORDION_METRICS_RETENTION_S` seconds (default 300).
    """
    content, content_type = metrics_response(
        state.database,
        datetime.fromtimestamp(state.clock(), UTC),
        retention_s=state.settings.metrics_retention_s,
        extra=[state.request_times, ProcessMetrics(state, threads)],
    )
    return Response(content, headers={"content-type": content_type})


def _check_service(state: AppState) -> CheckResult:
    draining = state.draining.is_set()
    return CheckResult(ok=not draining, message="shuts down" if draining else "accepts requests")


def _check_database(state: AppState) -> CheckResult:
    try:
        state.cluster.heartbeat()
    except Unavailable as error:
        return CheckResult(ok=False, message=str(error))
    except SQLAlchemyError as error:
        sentence = explain_database_error(error)
        return CheckResult(
            ok=False, message=sentence or f"failed ({type(error).__name__}); see the log"
        )
    return CheckResult(ok=True, message="responds")


def _check_migrations(state: AppState) -> CheckResult:
    found = current(state.database)
    message = f"is at {found}" + (
        "" if found == _HEAD else f", this code needs {_HEAD}; restart the service to migrate"
    )
    return CheckResult(ok=found == _HEAD, message=message)


def _check_scheduler(state: AppState) -> CheckResult:
    beat = state.cluster.heartbeat()
    if beat is None:
        return CheckResult(ok=False, message="has never run; start 'accordion scheduler'")
    age, limit = state.clock() - beat, state.settings.heartbeat_stale_s
    if age < -limit:
        message = (
            f"has a heartbeat {-age:.1f} s in the future: the clock was set back; a running"
            " scheduler renews it"
        )
        return CheckResult(ok=False, message=message)
    age = max(0.0, age)
    message = f"had its last heartbeat {age:.1f} s ago" + (
        "" if age <= limit else f", the limit is {limit:g} s; start 'accordion scheduler'"
    )
    return CheckResult(ok=age <= limit, message=message)


def _check_ray(state: AppState) -> CheckResult:
    cluster = state.cluster.get()
    if cluster is None:
        return CheckResult(ok=False, message="has not been checked by the scheduler yet")
    if not cluster.reachable:
        return CheckResult(ok=False, message=cluster.message)
    return CheckResult(
        ok=True, message=f"responds; {cluster.message}" if cluster.message else "responds"
    )
