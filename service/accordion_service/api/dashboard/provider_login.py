"""Pages of a login through an OpenID Connect provider.

What the login must remember is in an encrypted cookie, so any api process can finish it, and only
in the browser that began it, at the provider where it began.
"""

from __future__ import annotations

from hmac import compare_digest

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from accordion_service.access.oidc_provider import LoginSecrets, OidcProvider
from accordion_service.api.app_state import AppState
from accordion_service.api.dashboard.pages import render_page
from accordion_service.api.login import own_path, set_session
from accordion_service.domain.tokens import DAY_S, new_token
from accordion_service.errors import ApiError, NotFound, Unauthorized
from accordion_service.settings.secret_box import SecretBox, WrongKeyError
from accordion_service.store.writes.provider_logins import ProviderLogin, store_login

LOGIN_S = 600.0
"""How long a user may take to log in at the provider, in seconds."""
CALLBACK = "/login/oidc/callback"
_MAX_COOKIE_LENGTH = 3800
"""Longest cookie that is sent; browsers drop one that has more than 4096 bytes with its name."""
router = APIRouter(include_in_schema=False)
_log = structlog.get_logger()


class _BegunLogin(BaseModel):
    """Content of the cookie."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    expires_at: float


@router.get("/login/oidc")
async def begin_login(request: Request) -> Response:
    """Redirect to the provider."""
    state: AppState = request.app.state.accordion
    try:
        provider = _find_provider(state)
        redirect_uri = _own_address(request, state) + CALLBACK
        url, secrets = await provider.begin_login(redirect_uri)
    except ApiError as error:
        return _show_error(request, error)
    begun = _BegunLogin(
        state=secrets.state,
        nonce=secrets.nonce,
        verifier=secrets.verifier,
        redirect_uri=redirect_uri,
        next=own_path(request.query_params.get("next", "/")),
        expires_at=state.clock() + LOGIN_S,
    )
    response = RedirectResponse(url, 303, headers={"Cache-Control": "no-store"})
    response.set_cookie(
        _cookie_name(state),
        _encrypt_login(begun, _open_box(state, provider)),
        max_age=int(LOGIN_S),
        path="/login/oidc",
        httponly=True,
        samesite="lax",  # The provider's redirect comes from another site.
        secure=redirect_uri.startswith("https://"),
    )
    return response


@router.get(CALLBACK)
async def finish_login(request: Request) -> Response:
    """Log in the browser that comes back from the provider."""
    state: AppState = request.app.state.accordion
    try:
        provider = _find_provider(state)
        begun = _read_cookie(request, state, provider)
        token_id = await _log_in(request, state, begun, provider=provider)
    except ApiError as error:
        _log.warning("a login through the provider is refused", reason=str(error))
        response = _show_error(request, error)
    else:
        # A browser sends a strict cookie only if a page of ours, not the provider's redirect, leads
        # to the next page.
        response = render_page(request, "logged_in.html", target=begun.next)
        set_session(state, response, token_id, secure=begun.redirect_uri.startswith("https://"))
    response.delete_cookie(_cookie_name(state), path="/login/oidc")
    return response


async def _log_in(
    request: Request, state: AppState, begun: _BegunLogin, *, provider: OidcProvider
) -> str:
    """Return the ID of the session's token.

    Raises:
        ApiError: the login is refused.
    """
    query = request.query_params
    if not compare_digest(query.get("state", "").encode(), begun.state.encode()):
        raise Unauthorized("this is not the newest login of this browser; log in again")
    if query.get("iss", provider.config.issuer) != provider.config.issuer:  # RFC 9207
        raise Unauthorized(f"this login does not come from {provider.config.name}; log in again")
    if "code" not in query:
        reason = query.get("error_description") or query.get("error") or "without a reason"
        raise Unauthorized(f"{provider.config.name} refused the login: {reason[:200]}")
    secrets = LoginSecrets(state=begun.state, nonce=begun.nonce, verifier=begun.verifier)
    user = await provider.finish_login(query["code"], secrets, redirect_uri=begun.redirect_uri)
    now, token = state.clock(), new_token()
    login = ProviderLogin(
        user=user,
        token=token,
        label=f"login through {provider.config.name}",
        expires_at=now + state.settings.login_days * DAY_S,
        request_id=request.state.request_id,
    )
    await run_in_threadpool(store_login, state.database, login, now=now)
    return token.id


def _encrypt_login(begun: _BegunLogin, box: SecretBox) -> str:
    """Return the content of the cookie; if the page to open makes it too long, the login leads to
    the first page.
    """
    cookie = box.encrypt(begun.model_dump_json())
    if len(cookie) <= _MAX_COOKIE_LENGTH:
        return cookie
    return box.encrypt(begun.model_copy(update={"next": "/"}).model_dump_json())


def _read_cookie(request: Request, state: AppState, provider: OidcProvider) -> _BegunLogin:
    cookie = request.cookies.get(_cookie_name(state), "")
    try:
        begun = _BegunLogin.model_validate_json(_open_box(state, provider).decrypt(cookie))
    except (WrongKeyError, ValidationError):
        begun = None
    if begun is None or not state.clock() < begun.expires_at <= state.clock() + LOGIN_S:
        raise Unauthorized(
            f"this login was not begun in this browser within the last {LOGIN_S / 60:g} minutes;"
            f" log in again at {_own_address(request, state)}/login"
        )
    return begun


def _find_provider(state: AppState) -> OidcProvider:
    if state.oidc is None:
        raise NotFound("this service has no OpenID Connect provider; log in with a token")
    return state.oidc


def _own_address(request: Request, state: AppState) -> str:
    return (state.settings.url or str(request.base_url)).rstrip("/")


def _cookie_name(state: AppState) -> str:
    return f"{state.cookie}_oidc"


def _open_box(state: AppState, provider: OidcProvider) -> SecretBox:
    """Return the box of the cookie. Its key is derived from the admin token, as that of sessions,
    and from the provider, so that no other one gets the code of this one.
    """
    config = provider.config
    return SecretBox(f"oidc:{config.issuer} {config.client_id} {state.settings.token()}")


def _show_error(request: Request, error: ApiError) -> Response:
    """Show the login page with the reason."""
    return render_page(
        request,
        "login.html",
        status=error.status,
        next="/",
        failed="",
        link="",
        message=f"{str(error)[:1].upper()}{str(error)[1:]}.",
    )
