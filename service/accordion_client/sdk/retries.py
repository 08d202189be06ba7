"""Whether a request that failed is sent again, and when; pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import httpx2

Outcome = httpx2.Response | httpx2.TransportError
_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "PUT"})
"""Methods whose requests have the same effect once and several times."""
_TEMPORARY = frozenset({502, 503, 504})
"""Statuses of a service that is restarted, or has too much to do."""
_RATE_LIMITED = 429
"""Status of a request that the service refused unread, because there were too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How long a client waits for a response, and how often and for how long it sends a failed
    request again.

    A request that may have arrived is sent again only if it cannot take effect twice: if it reads,
    has an idempotency key, or repeats without effect, as a cancel does.
    """

    attempts: int = 4
    """Maximum number of attempts, with the first one; 1 for no retries."""
    timeout_s: float = 10.0
    """Seconds without a response after which an attempt counts as failed. Routes other than streams
    respond within one; the rest is for a busy machine. Uploads, downloads and actions on several
    jobs have longer limits of their own.
    """
    total_s: float = 20.0
    """Seconds after the start of the first attempt in which others may start. A request that timed
    out is sent again only if this is longer than `timeout_s`.
    """
    delay_s: float = 0.2
    """Maximum delay in seconds before the second attempt; it doubles with each attempt."""
    random: Callable[[], float] = random.random
    """Share of the maximum delay that a client waits, so that clients do not return together."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; give at least 1, for no retries")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; give seconds above 0")


def is_repeatable(request: httpx2.Request) -> bool:
    """Return whether a request may arrive twice, by its method or its idempotency key."""
    return request.method in _REPEATABLE_METHODS or "Idempotency-Key" in request.headers


def choose_delay(
    budget: RetryBudget, outcome: Outcome, *, repeatable: bool, attempts: int, elapsed_s: float
) -> float | None:
    """Return the seconds to wait before a request is sent again; None if it is not.

    Args:
        budget: limits of the retries.
        outcome: what the last attempt ended with.
        repeatable: whether the request may arrive twice.
        attempts: number of attempts so far.
        elapsed_s: seconds since the start of the first attempt.
    """
    if attempts >= budget.attempts or not _may_repeat(outcome, repeatable=repeatable):
        return None
    delay_s = _read_retry_after(outcome) + budget.random() * budget.delay_s * 2 ** (attempts - 1)
    return delay_s if elapsed_s + delay_s <= budget.total_s else None


def _may_repeat(outcome: Outcome, *, repeatable: bool) -> bool:
    match outcome:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return True
        case httpx2.NetworkError() | httpx2.TimeoutException() | httpx2.RemoteProtocolError():
            return repeatable
        case httpx2.Response(status_code=status):
            return status == _RATE_LIMITED or (status in _TEMPORARY and repeatable)
    return False


def _read_retry_after(outcome: Outcome) -> float:
    """Return the seconds that the service asks to wait; 0 if it does not, or names a date."""
    text = outcome.headers.get("Retry-After", "") if isinstance(outcome, httpx2.Response) else ""
    return float(text) if text.isdecimal() else 0.0
