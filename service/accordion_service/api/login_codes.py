"""Routes with which a logged-in browser logs in a command line.

The browser adds a code and sends it to the command line, which exchanges it for a token. The code
is worth nothing without the verifier, which never leaves the command line (PKCE, RFC 7636).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from hmac import compare_digest

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from fastapi import APIRouter, Request

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import FULL_ACCESS, Caller, Scope, describe_missing_scope
from accordion_service.domain.tokens import DAY_S, digest_of, new_link_secret, new_token
from accordion_service.errors import Forbidden, Unauthorized
from accordion_service.schemas.accounts import NewToken, TokenView
from accordion_service.schemas.login import CodeExchange, LoginCodeRequest, LoginCodeView
from accordion_service.store.tables.models import LoginCodeRow
from accordion_service.store.writes.accounts import AccountStore, RequestedToken
from accordion_service.store.writes.login_codes import (
    CODE_LIFETIME_S,
    add_login_code,
    use_login_code,
)

router = APIRouter(prefix="/login-codes", tags=["login"], dependencies=[NO_QUERY])
exchange_router = APIRouter(include_in_schema=False, dependencies=[NO_QUERY])


@router.post(
    "",
    status_code=201,
    dependencies=[require_scope(Scope.TOKENS), *WRITES_ROWS],
    responses=describe_problems(400, 415),
)
def add_code(body: LoginCodeRequest, state: StateDep, caller: CallerDep) -> LoginCodeView:
    """Create a code for a token of yours. It works once, expires after a minute, and is accepted
    only together with the verifier of the challenge. `accordion login` uses it.
    """
    secret, now = new_link_secret(), state.clock()
    row = LoginCodeRow(
        digest=digest_of(secret),
        challenge=body.challenge,
        label=body.label,
        token_id=caller.token_id,
        expires_at=now + CODE_LIFETIME_S,
    )
    add_login_code(state.database, caller, row, now=now)
    return LoginCodeView(code=secret, expires_at=datetime.fromtimestamp(now + CODE_LIFETIME_S, UTC))


@exchange_router.post("/login/code", status_code=201, dependencies=[*WRITES_ROWS])
def exchange_code(body: CodeExchange, request: Request, state: StateDep) -> NewToken:
    """Exchange a code for a token of the user whose browser added it.

    Raises:
        Unauthorized: the code or the verifier is wrong, or the browser's token is not accepted.
    """
    now = state.clock()
    row = use_login_code(state.database, digest_of(body.code), now)
    if row is None or not compare_digest(create_s256_code_challenge(body.verifier), row.challenge):
        raise Unauthorized(
            "the login code is wrong, has already been used or has expired; run 'accordion login'"
            " again"
        )
    caller = replace(_find_caller(state, row.token_id), request_id=request.state.request_id)
    if Scope.TOKENS not in caller.scopes:
        raise Forbidden(describe_missing_scope(caller, Scope.TOKENS))
    ends = [now + state.settings.login_days * DAY_S, caller.expires_at]
    wanted = RequestedToken(
        user=caller.user,
        label=row.label,
        scopes=None,
        expires_at=min(end for end in ends if end is not None),
    )
    token = new_token()
    view = TokenView.model_validate(
        AccountStore(state.database, state.clock).add_token(caller, token, wanted)
    )
    return NewToken(**view.model_dump(), token=str(token))


def _find_caller(state: AppState, token_id: str) -> Caller:
    """Return the caller with a token; the admin token of the settings has no ID."""
    if not token_id:
        return FULL_ACCESS
    caller = AccountStore(state.database, state.clock).find_by_id(token_id)
    if caller is None:
        raise Unauthorized(f"token {token_id} is no longer there; run 'accordion login' again")
    return caller
