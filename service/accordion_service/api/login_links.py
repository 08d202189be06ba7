"""Route that creates one-time login links for browsers."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

from fastapi import APIRouter

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.domain.tokens import digest_of, new_link_secret
from accordion_service.schemas.login import LoginLinkRequest, LoginLinkView
from accordion_service.store.writes.login_links import add_login_link

router = APIRouter(prefix="/login-links", tags=["login"], dependencies=[NO_QUERY])


@router.post(
    "",
    status_code=201,
    dependencies=[require_scope(Scope.READ), *WRITES_ROWS],
    responses=describe_problems(400, 415),
)
def add_link(body: LoginLinkRequest, state: StateDep, caller: CallerDep) -> LoginLinkView:
    """Create a link that logs in one browser, with what your token allows. It works once, expires
    after 15 minutes, and does not contain the token.

    If the service runs without a token, `path` is the page itself.
    """
    if state.settings.token() is None:
        return LoginLinkView(path=body.next, expires_at=None)
    secret = new_link_secret()
    expires_at = add_login_link(state.database, caller, digest_of(secret), now=state.clock())
    path = f"/login?{urlencode({'link': secret, 'next': body.next}, safe='/')}"
    return LoginLinkView(path=path, expires_at=datetime.fromtimestamp(expires_at, UTC))
