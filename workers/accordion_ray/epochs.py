"""Ends epochs in an unchanged loop: with each `ray.train.report`, or after a number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accordion.compress.step_signals import Signal
from accordion.session.session import Session
from accordion.session.step_results import StepResult
from accordion_ray.guest_run import GuestRun
from accordion_ray.records import Attached, EndedEpoch, Totals


class EpochFollower:
    """Ends the session's epochs on every rank; all ranks make the same steps and reports.

    Args:
        attached: what is followed.
        guest: reports to the service, on rank 0.
        has_node_notice: returns whether this worker knows that a node is about to leave.
    """

    def __init__(
        self,
        attached: Attached,
        guest: GuestRun | None,
        *,
        has_node_notice: Callable[[], bool] = bool,
    ) -> None:
        self._attached = attached
        self._guest = guest
        self._lr = attached.rate()
        self._ended_at = attached.session.steps
        """Step at which the last epoch ended."""
        self._ended: EndedEpoch | None = None
        """Epoch that has ended and is recorded with the report, or the step, that follows."""
        self._metrics: dict[str, Any] = {}
        """Reported since the last record of an epoch, the newest value of each name."""
        self._notice = _NodeNotice(has_node_notice)

    def pass_boundary(self, result: StepResult) -> None:
        """Observe a step boundary, or a round that ended early; the session calls this."""
        self.record_ended()
        self._lr = self._attached.rate()
        if self._guest is not None:
            self._guest.record_boundary(result)
        self._notice.pass_boundary(self._attached.session, result)
        length = self._attached.steps_per_epoch
        if length is not None and self._attached.session.steps % length == 0:
            self._end_epoch()

    def end_before_save(self) -> None:
        """End the epoch before its state is saved, if the script is about to report it; otherwise
        only a round of local steps.
        """
        if self._ends_with_report():
            self._end_epoch()
        else:
            self._attached.session.finish_round()

    def begin_report(self, metrics: Mapping[str, Any]) -> None:
        """End the epoch, if reports end epochs, and record it with these metrics."""
        if self._ends_with_report():
            self._end_epoch()
            self._metrics.clear()
        self._notice.is_answered = False
        self._metrics.update(metrics)
        self.record_ended()

    def finish_report(self) -> None:
        """Count the time of a report, which saves a checkpoint."""
        if self._guest is not None:
            self._guest.count_seconds("checkpoint")

    def take_notice(self) -> bool:
        """Return whether a checkpoint is due because a node is about to leave; True once."""
        return self._notice.take()

    def _ends_with_report(self) -> bool:
        return self._attached.steps_per_epoch is None and not self._notice.is_answered

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


class _NodeNotice:
    """Ray's notice that a node of the run is about to leave, which reaches the workers one after
    the other; all of them see it at the same step boundary.
    """

    def __init__(self, is_given: Callable[[], bool]) -> None:
        self._is_given = is_given
        self._is_asked = self._is_due = self._is_over = False
        self.is_answered = False
        """Whether the script knows, and has not reported since."""

    def pass_boundary(self, session: Session, result: StepResult) -> None:
        if not self._is_asked and self._is_given():
            self._is_asked = True
            session.request(Signal.CHECKPOINT)
        if Signal.CHECKPOINT in result.announced and not self._is_over:
            self._is_due = self._is_over = True

    def take(self) -> bool:
        if not self._is_due:
            return False
        self._is_due, self.is_answered = False, True
        return True


def follower_of(session: Session) -> EpochFollower | None:
    """Return the follower of a session of `accordion_ray.attach`; None for other sessions."""
    follower = getattr(session.on_boundary, "__self__", None)
    return follower if isinstance(follower, EpochFollower) else None
