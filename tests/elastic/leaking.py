"""A task that takes more memory with each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accordion_workers.tasks.digits import DigitsMlp


class Leaks(DigitsMlp):
    """Holds `held_bytes`, and `leak_bytes` more after each micro-batch, as a list that
    grows would.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": 8})
        self._leak_bytes = int(options["leak_bytes"])
        self._kept = [b"x" * int(options.get("held_bytes", 0))]

    def loss(self, *arguments: Any, **named: Any) -> Any:
        """Compute the loss, and leak."""
        self._kept.append(b"x" * self._leak_bytes)
        return super().loss(*arguments, **named)
