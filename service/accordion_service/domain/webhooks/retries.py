"""States of a webhook's delivery, and when a failed one is tried again; pure."""

from __future__ import annotations

from enum import StrEnum

RETRY_DELAYS_S = (10.0, 60.0, 300.0, 1800.0, 7200.0, 21_600.0, 43_200.0)
"""Seconds between an attempt that failed and the next one, without jitter: 20.6 hours together, so
that a receiver that is down overnight misses nothing.
"""
JITTER = 0.25
"""Largest part of a delay that is added to it at random: deliveries that failed together are not
all tried again at the same moment.
"""
MAX_ATTEMPTS = len(RETRY_DELAYS_S) + 1
"""Attempts after which a delivery is dead."""


SECRET_OVERLAP_S = 86_400.0
"""Seconds for which messages are signed with a replaced secret as well, so that a receiver can take
the new one at any time in between.
"""


class DeliveryState(StrEnum):
    """State of a delivery."""

    PENDING = "PENDING"
    """Waits for its first or its next attempt."""
    DELIVERED = "DELIVERED"
    """The receiver responded with a status from 200 to 299."""
    DEAD = "DEAD"
    """Given up; kept, and sent again on request."""


def retry_delay_s(attempts: int, random_fraction: float) -> float | None:
    """Return the seconds until the next attempt after so many failed ones; None if there is none.

    Args:
        attempts: attempts so far, at least 1.
        random_fraction: random number from 0 to 1.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    return RETRY_DELAYS_S[attempts - 1] * (1.0 + JITTER * random_fraction)
