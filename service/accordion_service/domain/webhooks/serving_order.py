"""Order in which webhooks are served: receivers that fail or have many messages do not delay
others; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_PAUSE_S = 60.0
"""Longest pause of a webhook whose attempts fail, in seconds; the first one takes 2 s, and each
failure doubles it.
"""
_KEPT_S = 600.0
"""Seconds after its pause for which a webhook's last turn is kept."""
_MAX_EXPONENT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """The last turn of a webhook."""

    ended_at: float
    failures: int
    """Failed turns in a row."""

    @property
    def paused_until(self) -> float:
        if not self.failures:
            return self.ended_at
        return self.ended_at + min(MAX_PAUSE_S, 2.0 ** min(self.failures, _MAX_EXPONENT))


class WebhookTurns:
    """The last turns of webhooks, in this process. All times are seconds of one monotonic clock.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def record(self, webhook_id: str, *, has_failed: bool, now: float) -> None:
        """Record the end of a turn."""
        last = self._turns.get(webhook_id)
        failures = (0 if last is None else last.failures) + 1 if has_failed else 0
        self._turns[webhook_id] = _Turn(ended_at=now, failures=failures)

    def list_paused(self, now: float) -> set[str]:
        """Return the webhooks that are not served yet, because their last turn failed."""
        self._turns = {
            key: turn for key, turn in self._turns.items() if turn.paused_until + _KEPT_S > now
        }
        return {key for key, turn in self._turns.items() if turn.paused_until > now}

    def sort_key(self, webhook_id: str) -> tuple[int, float]:
        """Return the rank of a webhook: those that failed least first, and of these the one whose
        last turn is longest ago.
        """
        turn = self._turns.get(webhook_id)
        return (0, float("-inf")) if turn is None else (turn.failures, turn.ended_at)
