"""Route that creates one-time login links; requires the admin token or a session."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

from fastapi import APIRouter

from service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from service.api.login_schemas import LoginLinkRequest, LoginLinkView
from service.api.problems import describe_problems
from service.security.tokens import digest_of, new_link_secret
from service.store.login_links import add_login_link

router = APIRouter(prefix="/login-links", tags=["login"], dependencies=[NO_QUERY])


@router.post("", status_code=201, dependencies=WRITES_ROWS, responses=describe_problems(400, 415))
def add_link(body: LoginLinkRequest, state: StateDep) -> LoginLinkView:
    """Create a link that logs in one browser. It works once, expires after 15 minutes, and does not
    contain the token.

    If the service runs without a token, `path` is the page itself.
    """
    if state.settings.token() is None:
        return LoginLinkView(path=body.next, expires_at=None)
    secret = new_link_secret()
    expires_at = add_login_link(state.database, digest_of(secret), state.clock())
    path = f"/login?{urlencode({'link': secret, 'next': body.next}, safe='/')}"
    return LoginLinkView(path=path, expires_at=datetime.fromtimestamp(expires_at, UTC))
