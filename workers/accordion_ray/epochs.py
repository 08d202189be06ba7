"""Ends epochs in an unchanged loop: with each `ray.train.report`, or after a number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accordion.session.session import Session
from accordion.session.step_results import StepResult
from accordion_ray.guest_run import GuestRun
from accordion_ray.records import Attached, EndedEpoch, Totals


class EpochFollower:
    """Ends the session's epochs on every rank; all ranks make the same steps and reports.

    Args:
        attached: what is followed.
        guest: reports to the service, on rank 0.
    """

    def __init__(self, attached: Attached, guest: GuestRun | None) -> None:
        self._attached = attached
        self._guest = guest
        self._lr = attached.rate()
        self._ended_at = attached.session.steps
        """Step at which the last epoch ended."""
        self._ended: EndedEpoch | None = None
        """Epoch that has ended and is recorded with the report, or the step, that follows."""
        self._metrics: dict[str, Any] = {}
        """Reported since the last record of an epoch, the newest value of each name."""

    def pass_boundary(self, result: StepResult) -> None:
        """Observe a step boundary, or a round that ended early; the session calls this."""
        self.record_ended()
        self._lr = self._attached.rate()
        if self._guest is not None:
            self._guest.record_boundary(result)
        length = self._attached.steps_per_epoch
        if length is not None and self._attached.session.steps % length == 0:
            self._end_epoch()

    def end_before_save(self) -> None:
        """End the epoch before its state is saved, if the script is about to report it; otherwise
        only a round of local steps.
        """
        if self._attached.steps_per_epoch is None:
            self._end_epoch()
        else:
            self._attached.session.finish_round()

    def begin_report(self, metrics: Mapping[str, Any]) -> None:
        """End the epoch, if reports end epochs, and record it with these metrics."""
        if self._attached.steps_per_epoch is None:
            self._end_epoch()
            self._metrics.clear()
        self._metrics.update(metrics)
        self.record_ended()

    def finish_report(self) -> None:
        """Count the time of a report, which saves a checkpoint."""
        if self._guest is not None:
            self._guest.count_seconds("checkpoint")

    def _end_epoch(self) -> None:
        session = self._attached.session
        if session.steps == self._ended_at:
            return
        self._ended_at = session.steps  # before a round ends early, which passes a boundary
        if self._guest is not None:
            self._guest.count_seconds("evaluate")
        epoch, decision = session.epoch, session.decision
        switch = session.end_epoch(lr=self._lr, next_lr=self._attached.rate())
        session.lr = None  # the optimizer's rate counts, which may change at every step
        totals = Totals()
        if self._guest is not None:
            self._guest.count_seconds("decide")
            totals = self._guest.read_totals()
        self._ended = EndedEpoch(
            epoch=epoch, decision=decision, switch=switch, lr=self._lr, totals=totals
        )

    def record_ended(self) -> None:
        """Record the epoch that has ended, unless it is recorded; also called at the end."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        metrics, self._metrics = self._metrics, {}
        if self._guest is not None:
            self._guest.record_epoch(ended, metrics)


def follower_of(session: Session) -> EpochFollower | None:
    """Return the follower of a session of `accordion_ray.attach`; None for other sessions."""
    follower = getattr(session.on_boundary, "__self__", None)
    return follower if isinstance(follower, EpochFollower) else None
