"""Records: state of an override, and a worker group's report on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from accordion.base.messages import Ack, OverrideTarget
from accordion_service.domain.jobs.status_table import Tone

OverrideState = Literal[
    "PENDING", "DELIVERED", "APPLIED", "REJECTED", "SUPERSEDED", "EXPIRED", "CANCELLED"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideTraits:
    """One row of the table."""

    tone: Tone
    is_live: bool = False
    """Whether the override applies or may still apply. Only such an override can be cancelled."""


OVERRIDE_TABLE: Mapping[OverrideState, OverrideTraits] = {
    "PENDING": OverrideTraits(tone="wait", is_live=True),
    "DELIVERED": OverrideTraits(tone="run", is_live=True),
    "APPLIED": OverrideTraits(tone="good", is_live=True),
    "REJECTED": OverrideTraits(tone="bad"),
    "SUPERSEDED": OverrideTraits(tone="idle"),
    "EXPIRED": OverrideTraits(tone="idle"),
    "CANCELLED": OverrideTraits(tone="idle"),
}
"""What each state of an override means: the table that the pages and the command line read."""
LIVE = frozenset(state for state, traits in OVERRIDE_TABLE.items() if traits.is_live)
UNAPPLIED = LIVE - {"APPLIED"}
"""Live states in which some rank has not confirmed the override."""
ORDERED = LIVE | {"EXPIRED", "SUPERSEDED"}
"""States that are part of the orders; the controller checks the intervals, so repeated steps see
the same overrides.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideStatus:
    """State of one override."""

    id: str
    number: int
    """Order of arrival within the job: the larger number wins, layer by layer or for a target that
    has no layers.
    """
    target: OverrideTarget = "compression"
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
