"""Limits how many requests a user, or a token, may have open at once, so that the streams of one
leave connections for others; kept in memory, so each api process has its own.

A connection with an incomplete request makes room for others (`http_connections.py`), but not one
whose request is being answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from accordion_service.access.guards import PROBES
from accordion_service.api.http_connections import OpenConnections
from accordion_service.domain.access import Caller, Scope
from accordion_service.errors import TooManyRequests, Unavailable

_TOKEN_PART = 10
_USER_PART = 5
_RESERVED_PART = 20
MIN_ALLOWED = 20
"""Smallest limit of a token or user: some open pages of one browser."""
_RETRY_AFTER_S = 5


class _Holder(NamedTuple):
    """Has a limit of open requests."""

    key: str
    name: str
    """Name in messages."""
    part: int
    """The limit is the number of connections, divided by this."""


class OpenRequests:
    """Counts the requests that are being answered; used on the event loop only.

    Of the connections of the process, a token or a browser session may use a tenth, and a user a
    fifth; all clients without a token together use a fifth for each of static files, logins and
    logouts; each has at least 20. A twentieth is reserved for probes and admins.
    """

    def __init__(self, connections: OpenConnections) -> None:
        self._connections = connections
        self._num_by_key: Counter[str] = Counter()
        self._num_open = 0

    @contextmanager
    def hold_place(self, path: str, caller: Caller | None) -> Iterator[None]:
        """Count one request inside the block, except for probes, and for requests with the admin
        token of the settings.

        Args:
            path: path of the request.
            caller: who makes it; None on a path that is open to everybody.

        Raises:
            TooManyRequests: the token or its user has too many open requests.
            Unavailable: only the reserved connections are left.
        """
        if path in PROBES or (caller is not None and not caller.token_id):
            yield
            return
        holders = _list_holders(path, caller)
        self._check_room(holders, is_admin=caller is not None and Scope.ADMIN in caller.scopes)
        keys = [holder.key for holder in holders]
        self._num_by_key.update(keys)
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            self._num_by_key -= Counter(keys)

    def _check_room(self, holders: Sequence[_Holder], *, is_admin: bool) -> None:
        limit = self._connections.limit
        if not limit:
            return
        for holder in holders:
            allowed = max(MIN_ALLOWED, limit // holder.part)
            if self._num_by_key[holder.key] >= allowed:
                raise TooManyRequests(
                    f"{holder.name} has {allowed} open requests, and may not have more at once;"
                    " close streams, or raise ACCORDION_MAX_CONNECTIONS",
                    retry_after_s=_RETRY_AFTER_S,
                )
        if self._num_open >= limit - limit // _RESERVED_PART and not is_admin:
            raise Unavailable(
                f"{self._num_open} requests are open, and other connections are reserved for probes"
                " and admins; close streams, or raise ACCORDION_MAX_CONNECTIONS"
            )


def _list_holders(path: str, caller: Caller | None) -> list[_Holder]:
    """Return whose limits count for a request."""
    if caller is None:
        folder = path.split("/")[1]
        return [_Holder(f"path {folder}", f"everybody without a token at /{folder}", _USER_PART)]
    user = f"user {caller.user!r}"
    token = _Holder(f"token {caller.token_id}", f"token {caller.token_id} of {user}", _TOKEN_PART)
    session = _Holder(
        f"session {caller.session_id}", f"this browser session of {user}", _TOKEN_PART
    )
    return [session if caller.session_id else token, _Holder(user, user, _USER_PART)]
