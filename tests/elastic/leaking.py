"""A task that takes more memory with each batch."""

from __future__ import annotations

from typing import Any

from workers.tasks.digits import DigitsMlp

LEAK_BYTES = 60_000_000


class Leaks(DigitsMlp):
    """Keeps `LEAK_BYTES` more after each batch, as a list that grows would."""

    def loss(self, *arguments: Any, **named: Any) -> Any:
        """Compute the loss, and leak."""
        self._kept = [*getattr(self, "_kept", []), b"x" * LEAK_BYTES]
        return super().loss(*arguments, **named)
