"""Limits how many requests a token, or a browser session, may make; kept in memory, so each api
process has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from accordion_service.domain.access import Caller
from accordion_service.errors import TooManyRequests

MAX_BUCKETS = 10_000
"""Tokens and sessions that are remembered; beyond that, those that may make most requests are
forgotten.
"""


@dataclass(slots=True)
class _Bucket:
    """Requests that a token may make at once."""

    left: float
    filled_at: float


class RateLimits:
    """Token buckets: each holds `burst` requests and is refilled with `per_second`.

    Used on the event loop only, so nothing is locked.
    """

    def __init__(self, per_second: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}

    def count_request(self, caller: Caller) -> None:
        """Count one request; the admin token of the settings, and its sessions, have no limit.

        Raises:
            TooManyRequests: the token, or the browser session, has made too many.
        """
        if not caller.token_id:
            return
        now = self._monotonic()
        key = caller.session_id or caller.token_id
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget_full(now)
            bucket = self._buckets[key] = _Bucket(left=self._burst, filled_at=now)
        self._refill(bucket, now)
        if bucket.left < 1.0:
            sender = "a browser session" if caller.session_id else f"token {caller.token_id}"
            raise TooManyRequests(
                f"{sender} of user {caller.user!r} has made {self._burst} requests at once, and may"
                f" make {self._per_second:g} a second; send fewer, or raise ACCORDION_REQUEST_BURST"
                " and ACCORDION_REQUESTS_PER_SECOND",
                retry_after_s=math.ceil((1.0 - bucket.left) / self._per_second),
            )
        bucket.left -= 1.0

    def _refill(self, bucket: _Bucket, now: float) -> None:
        gained = self._per_second * (now - bucket.filled_at)
        bucket.left, bucket.filled_at = min(float(self._burst), bucket.left + gained), now

    def _forget_full(self, now: float) -> None:
        """Make room for another bucket: a full bucket is as good as a new one."""
        if len(self._buckets) < MAX_BUCKETS:
            return
        for bucket in self._buckets.values():
            self._refill(bucket, now)
        fullest = sorted(self._buckets, key=lambda one: -self._buckets[one].left)
        for key in fullest[: MAX_BUCKETS // 2]:
            del self._buckets[key]
