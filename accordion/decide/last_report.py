"""Position and digest of the last report, to detect whether another one is equal or newer; stdlib
only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accordion.base.messages import Report

_MEASURED = {
    "lr",
    "next_lr",
    "statistic_by_layer",
    "rms_by_layer",
    "agreement",
    "sent_share_by_layer",
    "cost_s_by_layer",
    "exchange_wait_s",
    "step_s",
    "beside_s",
    "link",
}
"""Fields of a report whose numbers are floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """Position and digest of the last report, to detect whether another one is equal or newer."""

    epoch: int
    step: int
    epoch_end: bool
    digest: str
    """Digest of the whole report, since a report may contain NaN, which equals nothing."""

    @property
    def order(self) -> tuple[int, int, bool]:
        """Place among reports, as tuples compare."""
        return (self.epoch, self.step, self.epoch_end)


def digest_report(report: Report) -> LastReport:
    """Return the position and digest of a report, with measured numbers as floats.

    A report therefore keeps its digest when it is sent as JSON.
    """
    content = {
        name: _to_floats(value) if name in _MEASURED else value
        for name, value in asdict(report).items()
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return LastReport(
        epoch=report.epoch, step=report.step, epoch_end=report.epoch_end, digest=digest
    )


def _to_floats(value: Any) -> Any:
    """Return a value with all its numbers as floats."""
    if isinstance(value, Mapping):
        return {key: _to_floats(item) for key, item in value.items()}
    return value if value is None else float(value)


__all__ = ["LastReport", "digest_report"]
