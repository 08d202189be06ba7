"""Log in and out in a browser: the token is changed for a cookie that scripts cannot read; the page is elsewhere."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from service.api.parts import Parts
from service.security.tokens import COOKIE, SESSION_S, new_session, token_matches

router = APIRouter(include_in_schema=False)
_SEE_OTHER = 303


@router.post("/login")
async def login(request: Request) -> Response:
    """Take the form field `token`; on to `next` (a path of ours) or back to the form."""
    parts: Parts = request.app.state.parts
    form = _fields(await request.body())
    token, given = parts.settings.token(), form.get("token", "")
    if token is None:
        return RedirectResponse("/", _SEE_OTHER)
    if not token_matches(given.strip(), token):
        return RedirectResponse("/login?failed=1", _SEE_OTHER)
    response = RedirectResponse(_own_path(form.get("next", "/")), _SEE_OTHER)
    response.set_cookie(
        COOKIE,
        new_session(token, parts.clock()),
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
def logout() -> Response:
    """Forget the cookie."""
    response = RedirectResponse("/login", _SEE_OTHER)
    response.delete_cookie(COOKIE)
    return response


def _fields(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=10))
    except ValueError:
        return {}


def _own_path(path: str) -> str:
    """The path, unless a browser would read another host from it."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
