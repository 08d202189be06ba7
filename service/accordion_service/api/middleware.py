"""Outermost ASGI layer: request id, guards, body limit, security headers, access log, catch-all for
errors.
"""

from __future__ import annotations

import re
from time import perf_counter
from urllib.parse import quote, urlencode

import structlog
import uuid_utils
from sqlalchemy.exc import DatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accordion_service.access.authentication import Authenticator, is_open_path
from accordion_service.access.guards import Access, check_host, check_origin
from accordion_service.access.rate_limits import RateLimits
from accordion_service.access.request_texts import check_request_texts
from accordion_service.api.login import own_path
from accordion_service.api.open_requests import OpenRequests
from accordion_service.api.problems import (
    api_error_response,
    crash_response,
    database_problem,
    problem_response,
)
from accordion_service.errors import ApiError, TooManyRequests, Unauthorized, Unavailable

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_DOCS_CSP = _CSP.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
"""The pages of FastAPI's documentation start their viewer from an inline script."""
_DOCS = ("/docs", "/redoc")
_MAX_OPEN_BODY_BYTES = 8192
"""Largest body on a route that needs no token; that of a login has a few hundred bytes."""
_STREAMED = ("POST", "/api/v1/code")
"""Route that streams its body and enforces its own size limit."""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_log = structlog.get_logger()


class _TooLarge(Exception):
    """The body is larger than the limit."""


class GuardMiddleware:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        authenticator: Authenticator,
        rate_limits: RateLimits,
        open_requests: OpenRequests,
        max_body_bytes: int,
    ) -> None:
        self._app = app
        self._access = access
        self._authenticator = authenticator
        self._rate_limits = rate_limits
        self._open_requests = open_requests
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                await self._serve_request(scope, receive, exchange)
            except Exception as error:  # noqa: BLE001  # the one catch-all of a request
                await exchange.answer(crash_response(scope, error))
            exchange.log()

    async def _serve_request(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        refusal = await self._refuse_request(scope, exchange.request_id)
        if refusal is not None:
            await exchange.answer(refusal)
            return
        try:
            with self._open_requests.hold_place(scope["path"], scope["state"]["caller"]):
                await self._answer_request(scope, receive, exchange)
        except (TooManyRequests, Unavailable) as error:
            await exchange.answer(api_error_response(scope, error))

    async def _answer_request(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        if (scope["method"], scope["path"]) == _STREAMED:
            await self._app(scope, receive, exchange.send)
            return
        limit = self._max_body_bytes
        if is_open_path(scope["path"]):
            limit = min(limit, _MAX_OPEN_BODY_BYTES)
        try:
            receive = await _read_body(scope, receive, limit)
        except ClientDisconnect:
            return
        except _TooLarge:
            detail = f"the body is larger than {limit} bytes; send less"
            await exchange.answer(problem_response(scope, 413, detail))
            return
        await self._app(scope, receive, exchange.send)

    async def _refuse_request(self, scope: Scope, request_id: str) -> Response | None:
        """Refuse the request, or note its caller in the scope's state."""
        headers = Headers(scope=scope)
        try:
            check_request_texts(scope)
            check_host(self._access, scope["path"], headers)
            check_origin(scope["method"], headers)
            caller = await self._authenticator.authenticate(HTTPConnection(scope), request_id)
            scope["state"]["caller"] = caller
            if caller is not None:
                self._rate_limits.count_request(caller)
        except Unauthorized as error:
            return _ask_to_log_in(scope, error)
        except ApiError as error:
            return api_error_response(scope, error)
        except (DatabaseError, PoolTimeout) as error:
            return database_problem(scope, error)
        return None


def _ask_to_log_in(scope: Scope, error: Unauthorized) -> Response:
    """Refuse a request; a browser gets the login form, which leads back to the page."""
    path, query = quote(scope["path"]), scope["query_string"].decode()
    if "text/html" not in Headers(scope=scope).get("accept", "") or path.startswith("/api/"):
        return api_error_response(scope, error)
    page = own_path(f"{path}?{query}" if query else path)
    if scope["method"] != "GET" or page == "/":
        return RedirectResponse("/login", 303)
    return RedirectResponse(f"/login?{urlencode({'next': page})}", 303)


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid_utils.uuid7())
        scope.setdefault("state", {})["request_id"] = self.request_id
        self._scope = scope
        self._send = send
        self._status = 0
        self._begin = perf_counter()

    async def send(self, message: Message) -> None:
        """Forward a message; add headers to the first one."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            csp = _DOCS_CSP if self._scope["path"] in _DOCS else _CSP
            for name, value in {**_HEADERS, "content-security-policy": csp}.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def answer(self, response: Response) -> None:
        """Send an error response, unless the application has started its own."""
        if not self._status:
            await response(self._scope, _no_body, self.send)

    def log(self) -> None:
        """Log one line for the request."""
        seconds = round(perf_counter() - self._begin, 4)
        method, path = self._scope["method"], self._scope["path"]
        caller = self._scope["state"].get("caller")
        _log.info(
            "request",
            method=method,
            path=path,
            status=self._status,
            seconds=seconds,
            user=caller.user if caller else "",
        )


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _read_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Read the whole body first, so that a large one is refused in one place."""
    declared = Headers(scope=scope).get("content-length", "")
    if declared.isdecimal() and _exceeds_limit(declared, limit):
        raise _TooLarge
    if scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return receive
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            # The received part may look like a complete request.
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise _TooLarge
    return _replay_body(bytes(body), receive)


def _exceeds_limit(digits: str, limit: int) -> bool:
    """Return whether the number is larger; Python refuses to parse thousands of digits."""
    digits = digits.lstrip("0")
    return len(digits) > len(str(limit)) or int(digits or 0) > limit


def _replay_body(body: bytes, receive: Receive) -> Receive:
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay
