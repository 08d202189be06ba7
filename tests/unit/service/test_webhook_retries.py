"""When a failed delivery is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.webhooks.retries import (
    JITTER,
    MAX_ATTEMPTS,
    RETRY_DELAYS_S,
    retry_delay_s,
)

DRAWS = st.floats(0.0, 1.0)


@given(st.integers(1, MAX_ATTEMPTS - 1), DRAWS)
def test_a_retry_waits_at_least_its_delay_and_little_longer(attempts: int, draw: float) -> None:
    delay_s = retry_delay_s(attempts, draw)
    assert delay_s is not None
    assert 1.0 <= delay_s / RETRY_DELAYS_S[attempts - 1] <= 1.0 + JITTER


@given(st.integers(1, MAX_ATTEMPTS - 2), DRAWS, DRAWS)
def test_each_retry_waits_longer_than_the_one_before(
    attempts: int, draw: float, other: float
) -> None:
    earlier, later = retry_delay_s(attempts, draw), retry_delay_s(attempts + 1, other)
    assert earlier is not None
    assert later is not None
    assert earlier < later


@given(st.integers(MAX_ATTEMPTS, 1000), DRAWS)
def test_after_the_last_attempt_there_is_no_other(attempts: int, draw: float) -> None:
    assert retry_delay_s(attempts, draw) is None


def test_a_receiver_that_is_down_overnight_misses_nothing() -> None:
    assert 12 * 3600 < sum(RETRY_DELAYS_S) < 24 * 3600
