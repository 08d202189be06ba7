"""Finds the address of Ray's dashboard, and whether anything answers there."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus

PROBE_INTERVAL_S = 60.0
"""Seconds between two probes: a dashboard seldom comes or goes, and the survey runs every second.
"""
PROBE_TIMEOUT_S = 2.0
"""A dashboard answers in milliseconds; all jobs wait for this call."""


def serves_pages(address: str) -> bool:
    """Return whether `host:port` serves a page; Ray names an address also where no
    dashboard runs.
    """
    try:
        with closing(http.client.HTTPConnection(address, timeout=PROBE_TIMEOUT_S)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


class DashboardProbe:
    """Remembers for a minute whether the dashboard at an address answers."""

    def __init__(
        self,
        probe: Callable[[str], bool] = serves_pages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._found: tuple[str, float, bool] = ("", 0.0, False)
        """Address that was probed last, when that was, and whether it answered."""

    def url(self, address: str | None) -> str | None:
        """Return the dashboard's URL; None if Ray names no address or nothing answers there."""
        if not address:
            return None
        known, probed_at, answers = self._found
        now = self._clock()
        if known != address or now - probed_at >= PROBE_INTERVAL_S:
            answers = self._probe(address)
            self._found = (address, now, answers)
        return f"http://{address}" if answers else None
