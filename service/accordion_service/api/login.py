"""Browser login and logout: exchanges a token or a one-time link for an HTTP-only cookie.

The page itself is in `service/accordion_service/api/dashboard`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from accordion_service.access.sessions import (
    SESSION_S,
    new_session,
    session_end,
    session_token,
    session_valid,
)
from accordion_service.api.app_state import AppState
from accordion_service.domain.tokens import digest_of, parse_token, token_matches
from accordion_service.errors import Unauthorized
from accordion_service.schemas.login import OWN_PATH
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.store.writes.ended_sessions import end_session, is_session_ended
from accordion_service.store.writes.login_links import use_login_link

router = APIRouter(include_in_schema=False)
_SEE_OTHER = 303


@router.post("/login")
async def login(request: Request) -> Response:
    """Check the form field `token` or `link`; redirect to `next` (a local path) or back to the
    form.
    """
    state: AppState = request.app.state.accordion
    form = _parse_form(await request.body())
    key, target = state.settings.token(), own_path(form.get("next", "/"))
    if key is None:
        return RedirectResponse(target, _SEE_OTHER)
    is_link = "link" in form
    token_id = await run_in_threadpool(_find_token, state, key, form)
    if token_id is None:
        # Reopening a used link from the browser's history still works for a logged-in user.
        cookie = request.cookies.get(state.cookie, "")
        if is_link and await run_in_threadpool(_is_logged_in, state, key, cookie):
            return RedirectResponse(target, _SEE_OTHER)
        return RedirectResponse(f"/login?failed={'link' if is_link else '1'}", _SEE_OTHER)
    response = RedirectResponse(target, _SEE_OTHER)
    set_session(state, response, token_id, secure=_is_https(request, state.settings.url))
    return response


@router.post("/logout")
def logout(request: Request) -> Response:
    """End the session: delete the cookie in the browser and refuse copies of it."""
    state: AppState = request.app.state.accordion
    cookie, token = request.cookies.get(state.cookie, ""), state.settings.token()
    if token is not None and session_valid(cookie, token, state.clock()):
        end_session(
            state.database, digest_of(cookie), expires_at=session_end(cookie), now=state.clock()
        )
    response = RedirectResponse("/login", _SEE_OTHER)
    response.delete_cookie(state.cookie)
    return response


def set_session(state: AppState, response: Response, token_id: str, *, secure: bool) -> None:
    """Begin a new session.

    Args:
        state: state of the api process.
        response: response that brings the cookie.
        token_id: token whose rights the session has; empty for the admin token.
        secure: the browser reached the service with https, and sends the cookie with https only.
    """
    response.set_cookie(
        state.cookie,
        new_session(state.settings.token() or "", state.clock(), token_id=token_id),
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def own_path(path: str) -> str:
    """Return the path, or that of the first page if a browser would take it for another host."""
    return path if re.fullmatch(OWN_PATH, path) else "/"


def _is_https(request: Request, address: str) -> bool:
    """Whether the browser reached the service with https: directly, or at the address of the
    settings, through a proxy that may not say so.
    """
    own = f"https://{request.headers.get('host', '')}/".lower()
    return request.url.scheme == "https" or f"{address}/".lower().startswith(own)


def _find_token(state: AppState, key: str, form: dict[str, str]) -> str | None:
    """Return the ID of the token that the form gives, by itself or through a link: empty for the
    admin token, None if it is not accepted.
    """
    if "link" in form:
        token_id = use_login_link(state.database, digest_of(form["link"]), state.clock())
        return token_id if token_id is None or _is_accepted(state, token_id) else None
    given = form.get("token", "").strip()
    if token_matches(given, key):
        return ""
    token = parse_token(given)
    with suppress(Unauthorized):
        caller = None if token is None else _accounts(state).find_by_secret(token)
        return None if caller is None else caller.token_id
    return None


def _accounts(state: AppState) -> AccountStore:
    return AccountStore(state.database, state.clock)


def _is_accepted(state: AppState, token_id: str) -> bool:
    with suppress(Unauthorized):
        return not token_id or _accounts(state).find_by_id(token_id) is not None
    return False


def _is_logged_in(state: AppState, key: str, cookie: str) -> bool:
    return (
        session_valid(cookie, key, state.clock())
        and not is_session_ended(state.database, digest_of(cookie))
        and _is_accepted(state, session_token(cookie))
    )


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=10))
    except ValueError:
        return {}
