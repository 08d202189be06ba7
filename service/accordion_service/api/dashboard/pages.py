"""Renders the templates of the pages."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accordion_service.api.app_state import AppState
from accordion_service.api.dashboard.assets import compute_fingerprint
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.jobs.loggers import LOGGER_TABLE
from accordion_service.domain.jobs.status_table import STATUS_TABLE
from accordion_service.domain.overrides.states import OVERRIDE_TABLE

FRESH = {"Cache-Control": "no-store"}
STATUSES = {
    status: {"phase": traits.phase, "tone": traits.tone, "isActive": traits.is_active}
    for status, traits in STATUS_TABLE.items()
}
"""The table of statuses as the scripts of the pages read it."""
OVERRIDE_STATES = {
    state: {"tone": traits.tone, "isLive": traits.is_live}
    for state, traits in OVERRIDE_TABLE.items()
}
LOGGER_STATES = {
    state: {"tone": traits.tone, "isFinal": traits.is_final}
    for state, traits in LOGGER_TABLE.items()
}


def render_page(
    request: Request, template: str, *, status: int = HTTPStatus.OK, page: str = "", **values: Any
) -> HTMLResponse:
    """Render a page for the caller of a request."""
    state: AppState = request.app.state.accordion
    caller: Caller | None = request.state.caller
    html = (
        load_templates()
        .get_template(template)
        .render(
            static=f"/static/pages/{compute_fingerprint()}",
            user=caller.user if caller else "",
            may_audit=caller is not None and Scope.AUDIT in caller.scopes,
            signed_in=state.cookie in request.cookies,
            page=page,
            provider=state.oidc.config.name if state.oidc else "",
            statuses=STATUSES,
            override_states=OVERRIDE_STATES,
            logger_states=LOGGER_STATES,
            **values,
        )
    )
    return HTMLResponse(html, status_code=int(status), headers=FRESH)


@cache
def load_templates() -> Environment:
    """Return the templates of all pages."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
