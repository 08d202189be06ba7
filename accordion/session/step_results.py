"""Results of a session's calls: the end of a step, and the switch to a decision."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.base.messages import Ack, Decision
from accordion.compress.step_signals import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Switch of all workers to a decision."""

    decision: Decision
    acks: tuple[Ack, ...]
    """One acknowledgement per rank, made from that rank's own plan after the switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step, the same on all workers but for `taken` of a local step."""

    taken: bool
    """Whether parameters change; False if a gradient was not finite on some worker, or in a local
    step on this one.
    """
    announced: frozenset[Signal]
    """Signals that some worker raised before its last bucket was exchanged."""
    switch: Switch | None
    """The switch to a new decision at this step boundary, if there was one."""
