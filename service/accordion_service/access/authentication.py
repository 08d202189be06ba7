"""Finds out who makes a request, from its token or its session cookie."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from accordion_service.access.guards import Access
from accordion_service.access.sessions import session_id, session_token, session_valid
from accordion_service.domain.access import FULL_ACCESS, Caller, Scope, ServiceUser
from accordion_service.domain.tokens import digest_of, parse_token, token_matches
from accordion_service.errors import Unauthorized
from accordion_service.store.engine.database import Database
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.store.writes.ended_sessions import is_session_ended

_OPEN_PATHS = frozenset(
    {
        "/livez",
        "/readyz",
        "/login",
        "/login/code",
        "/login/oidc",
        "/login/oidc/callback",
        "/logout",
    }
)
_OPEN_FOLDERS = ("/static/",)
_METRICS = "/metrics"
USE_NOTED_S = 60.0
"""Smallest interval, in seconds, between two updates of a token's newest use."""
_METRICS_READER = Caller(user=ServiceUser.METRICS.value, scopes=frozenset({Scope.METRICS}))
"""Caller with the metrics token of the settings."""


def is_open_path(path: str) -> bool:
    """Return whether a path is open to everybody, also without a token."""
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


class Authenticator:
    """Finds the caller of each request."""

    def __init__(self, access: Access, database: Database, clock: Callable[[], float]) -> None:
        self._access = access
        self._database = database
        self._clock = clock
        self._accounts = AccountStore(database, clock)
        self._used_at: dict[str, float] = {}
        """When the use of each token was last stored, by the token's ID."""
        self._writes: set[asyncio.Task[None]] = set()
        """Uses that are being stored, beside the requests."""

    async def authenticate(self, request: HTTPConnection, request_id: str) -> Caller | None:
        """Return the caller of a request; None on a path that is open to everybody.

        Raises:
            Unauthorized: the token is missing, unknown, expired or revoked, or the session ended.
            Unavailable: the database cannot be used.
        """
        if self._access.token is None:
            return replace(FULL_ACCESS, request_id=request_id)
        path: str = request.scope["path"]
        if is_open_path(path):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            caller = await self._find_by_token(self._access.token, path, given.strip())
        else:  # a header of another kind is not passed over in favour of a cookie
            caller = None if scheme else await self._find_by_cookie(self._access.token, request)
        if caller is None:
            raise Unauthorized(
                "the token is missing or wrong; send 'Authorization: Bearer TOKEN' or log in at"
                " /login"
            )
        self._note_use(caller.token_id)
        return replace(caller, request_id=request_id)

    def _note_use(self, token_id: str) -> None:
        """Store that a token is in use, at most once a minute; no request waits for it."""
        now = self._clock()
        if not token_id or abs(now - self._used_at.get(token_id, -math.inf)) < USE_NOTED_S:
            return
        self._used_at[token_id] = now
        write = asyncio.create_task(run_in_threadpool(self._accounts.note_use, token_id))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def _find_by_token(self, admin: str, path: str, given: str) -> Caller | None:
        if token_matches(given, admin):
            return FULL_ACCESS
        metrics = self._access.metrics_token
        if metrics and path == _METRICS and token_matches(given, metrics):
            return _METRICS_READER
        token = parse_token(given)
        if token is None:
            return None
        return await run_in_threadpool(self._accounts.find_by_secret, token)

    async def _find_by_cookie(self, admin: str, request: HTTPConnection) -> Caller | None:
        # The parser of all routes: cookies of other programs on the host may have any form.
        cookie = request.cookies.get(self._access.cookie, "")
        if not session_valid(cookie, admin, self._clock()):
            return None
        return await run_in_threadpool(self._find_session, cookie)

    def _find_session(self, cookie: str) -> Caller | None:
        if is_session_ended(self._database, digest_of(cookie)):
            raise Unauthorized("this session was ended by a logout; log in again at /login")
        token_id = session_token(cookie)
        caller = self._accounts.find_by_id(token_id) if token_id else FULL_ACCESS
        return None if caller is None else replace(caller, session_id=session_id(cookie))
