"""Decides whether to start another worker group after a failure; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from accordion_workers.records.contract import EndReason, FailureRecord, Payload
from accordion_workers.records.milestones import safe_step

MAX_LOST_GROUPS = 20
"""Worker groups that may be lost in a row without a new checkpoint or epoch."""
MAX_DEATHS = 6
"""Worker groups that may lose a process whose node stayed, without a new checkpoint or epoch in
between: something in the job, or its memory use, kills it.
"""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
"""Upper bound of the pause before the next group, which doubles while groups are lost without
progress.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCounts:
    """Failures of this attempt so far."""

    own: int = 0
    """Failures of the job itself."""
    lost_in_a_row: int = 0
    """Worker groups lost since the last new checkpoint or epoch."""
    storage_in_a_row: int = 0
    """Worker groups ended by the storage since the last new checkpoint or epoch; not counted as
    failures.
    """
    deaths: int = 0
    """Worker groups that lost a process while its node stayed, since the last new checkpoint or
    epoch.
    """
    last: tuple[int | None, str] | None = None
    """Step and message of the job's own last failure."""

    @classmethod
    def restore(cls, payloads: Iterable[Payload]) -> Self:
        """Restore the counts from the attempt's records, in order, when a supervisor restarts in
        mid-attempt.
        """
        found, reached = cls(), 0
        for payload in payloads:
            if isinstance(payload, FailureRecord) and payload.is_storage:
                found = replace(found, storage_in_a_row=found.storage_in_a_row + 1)
            elif isinstance(payload, FailureRecord) and payload.cause == "infrastructure":
                found = found.after_loss(payload)
            elif isinstance(payload, FailureRecord):
                found = found.after_own(payload)
            elif safe_step(payload) > reached:
                reached, found = safe_step(payload), found.after_progress()
        return found

    def after_progress(self) -> Self:
        """Return the counts after a new checkpoint or epoch."""
        return type(self)(own=self.own, last=self.last)

    def after_own(self, failure: FailureRecord) -> Self:
        """Return the counts with one more failure of the job itself."""
        return replace(self, own=self.own + 1, last=(failure.step, failure.message))

    def after_loss(self, failure: FailureRecord) -> Self:
        """Return the counts with one more lost group."""
        deaths = self.deaths + failure.process_died
        return replace(self, lost_in_a_row=self.lost_in_a_row + 1, deaths=deaths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Start another worker group after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The job failed."""

    reason: EndReason
    message: str


def decide_retry(
    failures: FailureCounts,
    failure: FailureRecord,
    *,
    progressed: bool,
    max_failures: int,
    fatal: EndReason | None,
) -> tuple[FailureCounts, Retry | GiveUp]:
    """Decide what to do after a worker group failed.

    `progressed` says whether it left a new checkpoint or epoch, `fatal` names an error that no
    retry can cure.
    """
    before = failures.after_progress() if progressed else failures
    if failure.is_storage:
        away = before.storage_in_a_row
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(away, 10))
        return replace(before, storage_in_a_row=away + 1), Retry(pause_s=pause_s)
    if failure.cause == "infrastructure":
        now = before.after_loss(failure)
        if fatal is not None:
            return now, GiveUp(reason=fatal, message=failure.message)
        return now, _decide_after_loss(now, failure)
    repeated = failure.step is not None and (failure.step, failure.message) == before.last
    now = before.after_own(failure)
    if fatal is not None:
        return now, GiveUp(reason=fatal, message=failure.message)
    if repeated or max_failures == 0:
        message = f"twice in a row: {failure.message}" if repeated else failure.message
        return now, GiveUp(reason="TASK_RAISED", message=message)
    if now.own > max_failures:
        message = f"{now.own} failures, max_failures is {max_failures}; the last: {failure.message}"
        return now, GiveUp(reason="TOO_MANY_FAILURES", message=message)
    return now, Retry(pause_s=FIRST_PAUSE_S)


def _decide_after_loss(failures: FailureCounts, failure: FailureRecord) -> Retry | GiveUp:
    lost, deaths = failures.lost_in_a_row, failures.deaths
    if deaths >= MAX_DEATHS:
        message = (
            f"{deaths} worker groups lost a process since the last new checkpoint or epoch; the"
            f" last: {failure.message}; give workers more memory or lower training.micro_batch, or,"
            " where processes are killed on purpose, set checkpoint.every_steps"
        )
        return GiveUp(reason="NO_PROGRESS", message=message)
    if lost > MAX_LOST_GROUPS:
        message = (
            f"{lost} worker groups in a row were lost without a new checkpoint or epoch; the last:"
            f" {failure.message}; where each trained for a while, set checkpoint.every_steps or"
            " checkpoint.every_seconds"
        )
        return GiveUp(reason="LOST", message=message)
    # After a first loss, the survivors continue at once.
    return Retry(pause_s=0.0 if lost == 1 else min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (lost - 2)))
