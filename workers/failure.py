"""Why a worker group ended before its time, and whether to try again; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from workers.contract import EndReason, FailureRecord
from workers.errors import LossNotFinite, TaskRaised, WorkerError
from workers.symptoms import is_collateral, is_dead, sentence_of

CONTROLLER = -1
"""The rank under which a failure of no rank stands: of what starts and leads the group."""
MOST_LOST_GROUPS = 20
"""Worker groups that may be lost in a row without a step of progress: then the cluster is broken, not unlucky."""
FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 30.0
"""Pauses before groups are started again that are lost again and again without a step: they double up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What went wrong so far in this attempt."""

    own: int = 0
    """Failures of the job itself."""
    lost_in_a_row: int = 0
    """Worker groups lost since a group last made a step."""
    last: tuple[int | None, str] | None = None
    """Step and sentence of the job's last own failure."""

    @classmethod
    def recorded(cls, failures: Iterable[FailureRecord]) -> Self:
        """What a supervisor knows that starts again in mid-attempt."""
        own = [failure for failure in failures if failure.cause == "job"]
        return cls(own=len(own), last=(own[-1].step, own[-1].message) if own else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Start another worker group after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The job failed."""

    reason: EndReason
    message: str


def failure_of(by_rank: Mapping[int, BaseException]) -> FailureRecord:
    """The failure that explains the others.

    A worker whose process died takes its peers' collectives down with it, so what they raise says nothing; and a
    collective that broke says only that some peer is gone. What a rank raised itself explains the rest.
    """
    if CONTROLLER in by_rank:
        return _of_controller(by_rank[CONTROLLER])
    dead = sorted(rank for rank, error in by_rank.items() if is_dead(error))
    if dead:
        listed = ", ".join(map(str, dead))
        return FailureRecord(cause="infrastructure", rank=dead[0], message=f"the process of rank {listed} is gone")
    own = {rank: error for rank, error in by_rank.items() if not is_collateral(error)}
    away = next((rank for rank, error in own.items() if isinstance(error, OSError)), None)
    if away is not None and all(isinstance(error, OSError) for error in own.values()):
        # what the task raises is a TaskRaised: this is the storage.
        return FailureRecord(cause="infrastructure", rank=away, message=sentence_of(own[away]))
    if not own:
        rank = min(by_rank, default=None)
        return FailureRecord(cause="infrastructure", rank=rank, message=f"rank {rank} lost its peers in a collective")
    rank, error = min(own.items(), key=lambda item: (not isinstance(item[1], WorkerError), item[0]))
    step, epoch = getattr(error, "step", None), getattr(error, "epoch", None)
    return FailureRecord(cause="job", rank=rank, epoch=epoch, step=step, message=sentence_of(error))


def next_move(
    failures: Failures, failure: FailureRecord, *, progressed: bool, most_own: int, fatal: EndReason | None
) -> tuple[Failures, Retry | GiveUp]:
    """What to do after a worker group failed; `fatal` names an error that no retry can cure."""
    if failure.cause == "infrastructure":
        lost = 1 if progressed else failures.lost_in_a_row + 1
        return replace(failures, lost_in_a_row=lost), _after_loss(lost, failure)
    place = (failure.step, failure.message)
    repeated = failure.step is not None and place == failures.last
    now = Failures(own=failures.own + 1, lost_in_a_row=0, last=place)
    if fatal is not None:
        return now, GiveUp(reason=fatal, message=failure.message)
    if repeated or most_own == 0:
        message = f"twice in a row: {failure.message}" if repeated else failure.message
        return now, GiveUp(reason="TASK_RAISED", message=message)
    if now.own > most_own:
        message = f"{now.own} failures, max_failures is {most_own}; the last: {failure.message}"
        return now, GiveUp(reason="TOO_MANY_FAILURES", message=message)
    return now, Retry(pause_s=FIRST_PAUSE_S)


def fatal_reason(by_rank: Mapping[int, BaseException]) -> EndReason | None:
    """The end that an error means at once, where every process lived."""
    if any(isinstance(error, LossNotFinite) for error in by_rank.values()):
        return "LOSS_NOT_FINITE"
    built = (error for error in by_rank.values() if isinstance(error, TaskRaised))
    return "TASK_RAISED" if any(error.step is None for error in built) else None


def _after_loss(lost: int, failure: FailureRecord) -> Retry | GiveUp:
    if lost > MOST_LOST_GROUPS:
        message = f"{lost} worker groups in a row were lost without a step; the last: {failure.message}"
        return GiveUp(reason="LOST", message=message)
    # A group that was lost after it got somewhere is bad luck: its survivors go on at once.
    return Retry(pause_s=0.0 if lost == 1 else min(MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** (lost - 2)))


def _of_controller(error: BaseException) -> FailureRecord:
    cause: Literal["job", "infrastructure"] = "infrastructure" if is_dead(error) else "job"
    return FailureRecord(cause=cause, rank=None, message=f"the worker group did not run: {sentence_of(error)}")
