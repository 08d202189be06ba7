"""What a session's calls return: how a step ended, and a decision that came into force."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.control import Word
from accordion.messages import Ack, Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """All workers went over to a decision."""

    decision: Decision
    acks: tuple[Ack, ...]
    """One a rank, each read from that rank's own hook after the switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """How a step ended; the same on all workers."""

    taken: bool
    """False: a gradient was not finite on some worker, and no worker changed its parameters."""
    announced: frozenset[Word]
    """What some worker had raised before its last bucket left."""
    switch: Switch | None
    """Set where a new decision came into force at this boundary."""
