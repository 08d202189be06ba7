"""Resolves names of hosts within a time limit."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread

from service.domain.webhook_targets import Address

_MAX_LOOKUPS = 8
"""Maximum number of lookups at a time in a process: one that takes long cannot be cancelled."""
_lookups = BoundedSemaphore(_MAX_LOOKUPS)
HostLookup = Callable[[str, float], list[Address]]
"""Returns the addresses of a host within so many seconds, at least one; raises LookupFailed."""


class LookupFailed(Exception):
    """The name of a host was not resolved."""


def look_up_host(host: str, timeout_s: float) -> list[Address]:
    """Return the addresses of a host, at least one, in the order of preference.

    Raises:
        LookupFailed: the name does not exist, or was not resolved in time.
    """
    if not _lookups.acquire(timeout=timeout_s):
        raise LookupFailed(
            f"{host} was not resolved: {_MAX_LOOKUPS} other names are being resolved, and none was"
            f" within {timeout_s:g} s; is the name server reachable?"
        )
    found: SimpleQueue[list[Address] | LookupFailed] = SimpleQueue()
    Thread(target=_resolve, args=(host, found), name="host-lookup", daemon=True).start()
    try:
        result = found.get(timeout=timeout_s)
    except Empty:
        raise LookupFailed(
            f"{host} was not resolved within {timeout_s:g} s; is the name server reachable?"
        ) from None
    if isinstance(result, LookupFailed):
        raise result
    return result


def _resolve(host: str, found: SimpleQueue[list[Address] | LookupFailed]) -> None:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
        found.put(list(dict.fromkeys(addresses)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        found.put(LookupFailed(f"{host} cannot be resolved ({reason}); is the name right?"))
    finally:
        _lookups.release()
