"""Dashboard pages: rendered here once, then updated by the browser through the REST API.

They show only what the API returns, and every button makes one documented REST call. The content
security policy allows scripts from this origin only; inline styles are allowed because Plotly sets
them on its charts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.api.app_state import AppState
from service.api.callers import CallerDep, require_scope
from service.api.deps import RepositoryDep
from service.api.views import job_view
from service.dashboard.assets import compute_fingerprint, list_assets
from service.domain.access import Caller, Scope
from service.domain.job_status import STATUS_TABLE
from service.domain.jobs import Kind
from service.domain.override_status import OVERRIDE_TABLE
from service.domain.ray_links import link_to_workers
from service.errors import NotFound
from service.store.stored_documents import stored_ray_run

router = APIRouter(include_in_schema=False)
_READS = require_scope(Scope.READ)
FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
FRESH = {"Cache-Control": "no-store"}
_STATUSES = {
    status: {"phase": traits.phase, "tone": traits.tone, "isActive": traits.is_active}
    for status, traits in STATUS_TABLE.items()
}
"""The table of statuses as the scripts of the pages read it."""
_OVERRIDE_STATES = {
    state: {"tone": traits.tone, "isLive": traits.is_live}
    for state, traits in OVERRIDE_TABLE.items()
}


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
        note="per epoch, log scale, compared with fp32 and fp16",
    ),
    Chart(id="phases", title="Time by phase", note="seconds per epoch, rank 0"),
    Chart(id="change", title="Gradient change", note="critical at or above the threshold"),
    Chart(id="rate", title="Learning rate", note="set by the schedule"),
)


@router.get("/", dependencies=[_READS])
def show_jobs(request: Request) -> Response:
    """Show the list of jobs."""
    return _render_page(request, "jobs.html", page="jobs")


@router.get("/jobs/{job_id}", dependencies=[_READS])
def show_job(
    request: Request, job_id: str, *, repository: RepositoryDep, caller: CallerDep
) -> Response:
    """Show one job, live."""
    row = repository.job(job_id)
    if row is None or not caller.may_see(row.owner):
        message = f"There is no job {job_id}; see the list of jobs."
        return _render_page(request, "missing.html", status=HTTPStatus.NOT_FOUND, message=message)
    job = job_view(row, repository.first_without_capacity([row]))
    asked = yaml.safe_dump(job.spec, sort_keys=False)
    is_guest = job.kind is Kind.GUEST
    cluster = repository.cluster()
    dashboard = cluster.dashboard_url if cluster else None
    link = link_to_workers(dashboard, stored_ray_run(row), seen_from=request.url.hostname)
    return _render_page(
        request, "job.html", job=job, is_guest=is_guest, spec=asked, charts=CHARTS, ray_link=link
    )


@router.get("/cluster", dependencies=[_READS])
def show_cluster(request: Request) -> Response:
    """Show nodes, queue and readiness checks."""
    return _render_page(request, "cluster.html", page="cluster")


@router.get("/login")
def show_login(request: Request) -> Response:
    """Show the login form for the admin token or a one-time link, which opening does not use up."""
    query = request.query_params
    failed, link = query.get("failed", ""), query.get("link", "")
    return _render_page(
        request, "login.html", next=query.get("next", "/"), failed=failed, link=link
    )


@router.get("/static/pages/{version}/{name:path}")
def serve_asset(name: str) -> Response:
    """Serve a static file of the pages.

    Raises:
        NotFound: the pages have no such file.
    """
    asset = list_assets().get(name)
    if asset is None:
        raise NotFound(f"there is no file {name!r}")
    return FileResponse(asset.path, media_type=asset.media_type, headers=FOR_EVER)


def _render_page(
    request: Request, template: str, *, status: int = HTTPStatus.OK, page: str = "", **values: Any
) -> HTMLResponse:
    state: AppState = request.app.state.accordion
    caller: Caller | None = request.state.caller
    html = (
        _load_templates()
        .get_template(template)
        .render(
            static=f"/static/pages/{compute_fingerprint()}",
            user=caller.user if caller else "",
            signed_in=state.cookie in request.cookies,
            page=page,
            statuses=_STATUSES,
            override_states=_OVERRIDE_STATES,
            **values,
        )
    )
    return HTMLResponse(html, status_code=int(status), headers=FRESH)


@cache
def _load_templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
