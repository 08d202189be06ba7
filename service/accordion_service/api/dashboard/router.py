"""Dashboard pages: rendered here once, then updated by the browser through the REST API.

They show only what the API returns, and every button makes one documented REST call. The content
security policy allows scripts from this origin only; inline styles are allowed because Plotly sets
them on its charts.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.dashboard.assets import list_assets
from accordion_service.api.dashboard.pages import render_page
from accordion_service.api.deps import StateDep
from accordion_service.domain.access import Scope, describe_missing_scope
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.ray_links import link_to_workers
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.domain.performance.bottleneck import PART_NAMES
from accordion_service.errors import NotFound
from accordion_service.schemas.jobs import PLAIN
from accordion_service.schemas.login import CHALLENGE
from accordion_service.schemas.queries import JobQuery
from accordion_service.store.tables.stored_documents import stored_ray_run
from accordion_service.store.tables.stored_spec import resource_request, spec_value
from accordion_service.views.jobs import job_view
from accordion_workers.tasks import SCRIPT

router = APIRouter(include_in_schema=False)
_READS = require_scope(Scope.READ)
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart over the epochs of a job, drawn by `charts.js` according to its ID."""

    id: str
    title: str
    note: str


CHARTS = (
    Chart(id="loss", title="Loss", note="mean over the epoch; shaded: override active"),
    Chart(id="metrics", title="Metrics", note="on held-out samples, at the end of the epoch"),
    Chart(
        id="traffic",
        title="Bytes sent per worker",
        note="on the wire, per epoch, log scale",
    ),
    Chart(id="phases", title="Time by phase", note="seconds per epoch, rank 0"),
    Chart(id="change", title="Gradient change", note="critical at or above the threshold"),
    Chart(id="rate", title="Learning rate", note="of the last step"),
)


@router.get("/", dependencies=[_READS])
def show_jobs(request: Request, caller: CallerDep) -> Response:
    """Show the list of jobs."""
    sees_all = Scope.READ_ALL in caller.scopes
    filters = " ".join(JobQuery.model_fields)
    return render_page(request, "jobs.html", page="jobs", sees_all=sees_all, filters=filters)


@router.get("/jobs/{job_id}", dependencies=[_READS])
def show_job(request: Request, job_id: str, *, state: StateDep, caller: CallerDep) -> Response:
    """Show one job, live."""
    row = state.jobs.get(job_id)
    if row is None or not caller.may_see(row.owner):
        message = f"There is no job {job_id}; see the list of jobs."
        missing = {"heading": "Not found", "message": message}
        return render_page(request, "missing.html", status=HTTPStatus.NOT_FOUND, **missing)
    job = job_view(row, state.queue.first_without_capacity([row]))
    asked = yaml.safe_dump(job.spec, sort_keys=False)
    is_guest = job.kind is Kind.GUEST
    cluster = state.cluster.get()
    dashboard = cluster.dashboard_url if cluster else None
    link = link_to_workers(dashboard, stored_ray_run(row), seen_from=request.url.hostname)
    return render_page(
        request,
        "job.html",
        job=job,
        is_guest=is_guest,
        spec=asked,
        is_script=spec_value(row, "task.name", "") == SCRIPT,
        step=resource_request(row).step,
        charts=CHARTS,
        ray_link=link,
        part_names=PART_NAMES,
    )


@router.get("/cluster", dependencies=[_READS])
def show_cluster(request: Request) -> Response:
    """Show nodes, queue and readiness checks."""
    return render_page(request, "cluster.html", page="cluster")


@router.get("/audit")
def show_audit_log(request: Request, caller: CallerDep) -> Response:
    """Show who changed what, to those who may read it; others get a page that says so."""
    if Scope.AUDIT not in caller.scopes:
        why = describe_missing_scope(caller, Scope.AUDIT)
        message = f"The audit log is for operators and admins: {why}."
        refusal = {"heading": "Not allowed", "message": message}
        return render_page(request, "missing.html", status=HTTPStatus.FORBIDDEN, **refusal)
    return render_page(request, "audit.html", page="audit", actions=list(AuditAction))


@router.get("/login")
def show_login(request: Request) -> Response:
    """Show the login form for the admin token or a one-time link, which opening does not use up."""
    query = request.query_params
    failed, link = query.get("failed", ""), query.get("link", "")
    return render_page(
        request, "login.html", next=query.get("next", "/"), failed=failed, link=link, message=""
    )


class _CommandLine(BaseModel):
    """Query with which a command line asks to be logged in."""

    model_config = ConfigDict(extra="forbid")
    port: Annotated[int, Field(ge=1, le=65535)]
    challenge: Annotated[str, Field(pattern=CHALLENGE)]
    label: Annotated[str, Field(min_length=1, max_length=128, pattern=PLAIN)]


@router.get("/login/command-line", dependencies=[require_scope(Scope.TOKENS)])
def show_command_line_login(request: Request, query: Annotated[_CommandLine, Query()]) -> Response:
    """Ask whether to log in the command line that listens on a port of the browser's machine."""
    state: AppState = request.app.state.accordion
    days = f"{state.settings.login_days:g}"
    return render_page(request, "command_line.html", **query.model_dump(), days=days)


@router.get("/static/pages/{version}/{name:path}")
def serve_asset(name: str) -> Response:
    """Serve a static file of the pages.

    Raises:
        NotFound: the pages have no such file.
    """
    asset = list_assets().get(name)
    if asset is None:
        raise NotFound(f"there is no file {name!r}")
    return FileResponse(asset.path, media_type=asset.media_type, headers=_FOR_EVER)
