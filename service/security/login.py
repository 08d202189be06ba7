"""Browser login and logout: exchanges a token or a one-time link for an HTTP-only cookie.

The page itself is in `service/dashboard`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from service.api.app_state import AppState
from service.security.tokens import (
    SESSION_S,
    digest_of,
    new_session,
    session_end,
    session_valid,
    token_matches,
)
from service.store.ended_sessions import end_session, is_session_ended
from service.store.login_links import use_login_link

router = APIRouter(include_in_schema=False)
_SEE_OTHER = 303


@router.post("/login")
async def login(request: Request) -> Response:
    """Check the form field `token` or `link`; redirect to `next` (a local path) or back to the
    form.
    """
    state: AppState = request.app.state.accordion
    form = _parse_form(await request.body())
    token, target = state.settings.token(), _own_path(form.get("next", "/"))
    if token is None:
        return RedirectResponse(target, _SEE_OTHER)
    if "link" in form:
        if not await run_in_threadpool(
            use_login_link, state.database, digest_of(form["link"]), state.clock()
        ):
            # Reopening a used link from the browser's history still works for a logged-in user.
            cookie = request.cookies.get(state.cookie, "")
            known = session_valid(cookie, token, state.clock()) and not await run_in_threadpool(
                is_session_ended, state.database, digest_of(cookie)
            )
            return RedirectResponse(target if known else "/login?failed=link", _SEE_OTHER)
    elif not token_matches(form.get("token", "").strip(), token):
        return RedirectResponse("/login?failed=1", _SEE_OTHER)
    response = RedirectResponse(target, _SEE_OTHER)
    response.set_cookie(
        state.cookie,
        new_session(token, state.clock()),
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
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


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=10))
    except ValueError:
        return {}


def _own_path(path: str) -> str:
    """Return the path, unless a browser would interpret it as another host."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
