"""Resolves names of hosts within a time limit."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from accordion_service.domain.webhooks.targets import Address

MAX_LOOKUPS = 32
"""Maximum number of lookups at a time in a process: one that takes long cannot be cancelled."""
MAX_LOOKUPS_PER_USER = 4
"""Maximum number of lookups at a time for one user: name servers that hang cannot occupy all."""
HostLookup = Callable[[str, float, str], list[Address]]
"""Returns the addresses of a host within so many seconds for a user, at least one; raises
LookupFailed or LookupPostponed.
"""
_Result = list[Address] | Exception
_users: list[str] = []
"""Users of the lookups that run, one entry for each."""
_lock = Lock()


class LookupFailed(Exception):
    """The name of a host was not resolved."""


class LookupPostponed(Exception):
    """The name of a host was not asked for: too many lookups run. This says nothing about it."""


def look_up_host(host: str, timeout_s: float, user: str) -> list[Address]:
    """Return the addresses of a host, at least one, in the order of preference.

    An address is returned at once. A name is resolved in a thread, which may outlive the limit.

    Raises:
        LookupFailed: the name does not exist, or was not resolved in time.
        LookupPostponed: too many other names are being resolved.
    """
    with suppress(ValueError):
        return [ip_address(host)]
    found = _start_lookup(host, user)
    try:
        result = found.get(timeout=timeout_s)
    except Empty:
        raise LookupFailed(
            f"{host} was not resolved within {timeout_s:g} s; is the name server reachable?"
        ) from None
    if isinstance(result, Exception):
        raise result
    return result


def _start_lookup(host: str, user: str) -> SimpleQueue[_Result]:
    """Start to resolve a name; return where its addresses arrive."""
    found: SimpleQueue[_Result] = SimpleQueue()
    with _lock:
        if len(_users) >= MAX_LOOKUPS or _users.count(user) >= MAX_LOOKUPS_PER_USER:
            raise LookupPostponed(
                f"{host} was not resolved: {_users.count(user)} other names of user {user!r} and"
                f" {len(_users)} of all users are being resolved; the limits are"
                f" {MAX_LOOKUPS_PER_USER} and {MAX_LOOKUPS}; is the name server reachable?"
            )
        _users.append(user)
    thread = Thread(target=_resolve, args=(host, user, found), name="host-lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _forget_lookup(user)
        raise LookupPostponed(f"{host} was not resolved: {error}") from None
    return found


def _resolve(host: str, user: str, found: SimpleQueue[_Result]) -> None:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
        found.put(list(dict.fromkeys(addresses)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        found.put(LookupFailed(f"{host} cannot be resolved ({reason}); is the name right?"))
    finally:
        _forget_lookup(user)


def _forget_lookup(user: str) -> None:
    with _lock:
        _users.remove(user)
