"""Whether the process lives, whether it can work, and what it measures; outside `/api/v1`."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Response
from sqlalchemy.exc import SQLAlchemyError

from service.api.deps import NO_QUERY, PartsDep
from service.api.parts import Parts
from service.api.problems import problems
from service.api.schemas import CheckResult, Ready
from service.errors import Unavailable
from service.metrics import metrics_response
from service.store.migrations import current, head

router = APIRouter(tags=["health"], dependencies=[NO_QUERY])
_HEAD = head()


@router.get("/livez", responses=problems())
async def livez() -> dict[str, bool]:
    """The process answers; nothing else is asked."""
    return {"alive": True}


@router.get(
    "/readyz",
    responses={503: {"model": Ready}, **{k: v for k, v in problems().items() if k != 503}},
)
def readyz(parts: PartsDep, response: Response) -> Ready:
    """Whether jobs can be taken and run: the service itself, database, migrations,
    scheduler, Ray.
    """
    checks = {"service": _service(parts), "database": _database(parts)}
    if checks["database"].ok:
        checks |= {
            "migrations": _migrations(parts),
            "scheduler": _scheduler(parts),
            "ray": _ray(parts),
        }
    ready = all(check.ok for check in checks.values())
    response.status_code = 200 if ready else 503
    return Ready(ready=ready, checks=checks)


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
    response_class=Response,
)
def metrics(parts: PartsDep) -> Response:
    """Everything measured, for Prometheus; an ended job leaves after the retention that the
    settings name.
    """
    content, content_type = metrics_response(
        parts.repository,
        datetime.fromtimestamp(parts.clock(), UTC),
        retention_s=parts.settings.metrics_retention_s,
        extra=[parts.request_times],
    )
    return Response(content, headers={"content-type": content_type})


def _service(parts: Parts) -> CheckResult:
    draining = parts.draining.is_set()
    return CheckResult(ok=not draining, message="is going down" if draining else "takes requests")


def _database(parts: Parts) -> CheckResult:
    try:
        parts.repository.heartbeat()
    except Unavailable as error:
        return CheckResult(ok=False, message=str(error))
    except SQLAlchemyError as error:
        return CheckResult(
            ok=False, message=f"does not answer ({type(error).__name__}); see the log"
        )
    return CheckResult(ok=True, message="answers")


def _migrations(parts: Parts) -> CheckResult:
    found = current(parts.database)
    message = f"is at {found}" + (
        "" if found == _HEAD else f", this code needs {_HEAD}; restart the service to migrate"
    )
    return CheckResult(ok=found == _HEAD, message=message)


def _scheduler(parts: Parts) -> CheckResult:
    beat = parts.repository.heartbeat()
    if beat is None:
        return CheckResult(ok=False, message="has not been here yet; start 'accordion scheduler'")
    age, limit = parts.clock() - beat, parts.settings.heartbeat_stale_s
    if age < -limit:
        message = (
            f"was here {-age:.1f} s in the future: the clock was set back; it renews its heartbeat"
            " if it lives"
        )
        return CheckResult(ok=False, message=message)
    age = max(0.0, age)
    message = f"was here {age:.1f} s ago" + (
        "" if age <= limit else f", the limit is {limit:g} s; start 'accordion scheduler'"
    )
    return CheckResult(ok=age <= limit, message=message)


def _ray(parts: Parts) -> CheckResult:
    cluster = parts.repository.cluster()
    if cluster is None:
        return CheckResult(ok=False, message="has not been looked at yet")
    if not cluster.reachable:
        return CheckResult(ok=False, message=cluster.message)
    return CheckResult(
        ok=True, message=f"answers; {cluster.message}" if cluster.message else "answers"
    )
