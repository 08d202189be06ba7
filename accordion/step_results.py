"""What a session's calls return: how a step ended, and a decision that came into force."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.messages import Ack, Decision
from accordion.step_signals import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The switch of all workers to a decision."""

    decision: Decision
    acks: tuple[Ack, ...]
    """One acknowledgement per rank, read from that rank's own plan after the switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """How a step ended; the same on all workers."""

    taken: bool
    """Whether parameters changed; False if a gradient was not finite on some worker."""
    announced: frozenset[Signal]
    """Words that some worker raised before its last bucket was exchanged."""
    switch: Switch | None
    """The switch to a new decision at this step boundary, if there was one."""
