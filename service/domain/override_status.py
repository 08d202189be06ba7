"""Records: state of an override, and a worker group's report on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from accordion.messages import Ack
from service.domain.job_status import Tone

OverrideState = Literal[
    "PENDING", "DELIVERED", "APPLIED", "REJECTED", "SUPERSEDED", "EXPIRED", "CANCELLED"
]
OVERRIDE_TONES: Mapping[OverrideState, Tone] = {
    "PENDING": "wait",
    "DELIVERED": "run",
    "APPLIED": "good",
    "REJECTED": "bad",
    "SUPERSEDED": "idle",
    "EXPIRED": "idle",
    "CANCELLED": "idle",
}
LIVE = frozenset({"PENDING", "DELIVERED", "APPLIED"})
ORDERED = LIVE | {"EXPIRED", "SUPERSEDED"}
"""States that are part of the orders; the controller checks the intervals, so repeated steps see
the same overrides.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideStatus:
    """State of one override."""

    id: str
    number: int
    """Order of arrival within the job: the larger number wins, layer by layer or for the batch."""
    target: Literal["compression", "batch"] = "compression"
    layers: tuple[str, ...]
    until: int | None
    orders_version: int
    """First version of the job's orders that holds it."""
    state: OverrideState = "PENDING"
    message: str = ""
    epoch: int | None = None
    step: int | None = None
    world_size: int | None = None
    acks: tuple[Ack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """What a worker group reports after a switch."""

    epoch: int
    step: int
    world_size: int
    digest: str
    """Digest of the announced plan."""
    override_ids: tuple[str, ...]
    acks: tuple[Ack, ...]
