"""Decides when worker processes count as hung, on every engine; without IO.

| limit of the job | a process or group counts as hung when |
| --- | --- |
| `limits.answer_seconds` | a process leaves a heartbeat unanswered (`HangDetector.check`) |
| `limits.start_seconds` | a process does not load its task (`check`), or a group its checkpoint |
| `INSTALL_LIMIT_S` | a process does not install its packages (`check`) |
| `limits.step_seconds` | no rank of a group that trains makes progress (`describe_hang`) |

The worker pool kills a hung process; the attempt kills a hung group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accordion_workers.common.errors import PackagesError, ProcessLost, TaskNotReady, WorkerError
from accordion_workers.controller.member import Member
from accordion_workers.records.contract import FailureRecord
from accordion_workers.spec.job import LimitsSpec
from accordion_workers.training.context import RankProgress
from accordion_workers.user_code.packages import INSTALL_LIMIT_S

HEARTBEAT_S = 1.0
"""Interval between heartbeat requests to a process."""
PREPARING_S = 120.0
"""Minimum silence allowed while a process prepares: code that loads data may hold Python's lock for
minutes, and would do so again in a replacement."""
INSTALL_MARGIN_S = 60.0
"""Seconds after the limit for installing packages in which a process must have ended by itself."""
MAX_SILENCE_S = 960.0
"""Upper bound of the silence limit, which doubles whenever a process is killed for its silence."""
_MAX_RANKS = 4
"""Number of ranks of a hung group that the message lists."""


class HangDetector:
    """Measures the silence of processes and the idle time of their group.

    Only time during which the supervisor polls counts: after a pause of the supervisor itself,
    answers are still unread.
    """

    def __init__(self, limits: LimitsSpec, now: float) -> None:
        self._limits = limits
        self.silence_limit_s = float(limits.answer_seconds)
        """Seconds for which a process may leave a heartbeat unanswered."""
        self.idle_s = 0.0
        """Seconds without progress of any rank of the group."""
        self._activity_counts: dict[int, int] = {}
        """Activity counters of the group's members, by process number."""
        self._measured_at = now

    def start_group(self) -> None:
        """Reset the idle time for a new group."""
        self._activity_counts, self.idle_s = {}, 0.0

    def record_activity(self, number: int, activity_count: int) -> None:
        """Reset the idle time if the member's activity counter has changed."""
        if self._activity_counts.get(number) != activity_count:
            self._activity_counts[number], self.idle_s = activity_count, 0.0

    def measure(self, members: Iterable[Member], now: float) -> None:
        """Add the time since the last call, at most one heartbeat interval, to all counters."""
        watched_s, self._measured_at = min(now - self._measured_at, HEARTBEAT_S), now
        self.idle_s += watched_s
        for member in members:
            is_silent = member.heartbeat_call is not None
            member.silent_s = member.silent_s + watched_s if is_silent else 0.0
            is_preparing = member.location is not None and member.starting is not None
            if is_preparing and member.provision == "install_packages":
                member.installs_s += watched_s
            elif is_preparing and member.provision is None:
                member.prepares_s += watched_s

    def check(self, member: Member) -> WorkerError | None:
        """Return why the process counts as hung; None if it does not.

        Silence doubles the limit of later processes: a replacement may hold Python's lock for as
        long.
        """
        limit_s = self.silence_limit_s
        if member.starting is not None:
            limit_s = max(PREPARING_S, limit_s)
        if member.silent_s >= limit_s:
            doubled_s = min(2 * self.silence_limit_s, MAX_SILENCE_S)
            self.silence_limit_s = max(self.silence_limit_s, doubled_s)
            return ProcessLost(
                f"the process did not answer for {limit_s:g} s and was killed; raise"
                " limits.answer_seconds if its code may hold Python's lock that long (limit from"
                f" now on: {self.silence_limit_s:g} s)"
            )
        if member.installs_s >= (limit_s := INSTALL_LIMIT_S + INSTALL_MARGIN_S):
            return PackagesError(
                f"the packages of the job were not installed within {limit_s:g} s, and the process"
                " did not end by itself; is the storage or the temporary directory of this node"
                " unresponsive?"
            )
        if member.prepares_s >= (limit_s := self._limits.start_seconds):
            sentence = (
                f"task and data were not loaded within {limit_s:g} s; raise limits.start_seconds"
            )
            return TaskNotReady(None, None, sentence)
        return None


def select_progress_limit_s(limits: LimitsSpec, progress: Mapping[int, RankProgress]) -> float:
    """Return for how many seconds a group may make no progress."""
    has_trained = any(one.doing != "starting" for one in progress.values())
    return limits.step_seconds if has_trained else limits.start_seconds


def describe_hang(
    progress: Mapping[int, RankProgress], places: Mapping[int, str], limit_s: float
) -> FailureRecord:
    """Describe a group in which no rank makes progress; `places` holds known lines of code
    by rank.
    """
    first = min(progress, default=0)
    ranks = [
        f"rank {rank} is {_describe_rank(progress[rank], places.get(rank))}"
        for rank in sorted(progress)[:_MAX_RANKS]
    ]
    seen = "; ".join(ranks) or "none of them responds"
    message = (
        f"no rank has made progress for {limit_s:g} s: {seen}; if that is expected, raise limits."
    )
    is_starting = all(one.doing == "starting" for one in progress.values())
    known = progress.get(first)
    return FailureRecord(
        cause="job",
        rank=first,
        epoch=known.epoch if known is not None else None,
        step=known.step if known is not None and known.doing != "starting" else None,
        message=message + ("start_seconds" if is_starting else "step_seconds"),
    )


def _describe_rank(progress: RankProgress, place: str | None) -> str:
    return f"{progress} ({place})" if place else str(progress)


__all__ = [
    "HEARTBEAT_S",
    "MAX_SILENCE_S",
    "PREPARING_S",
    "HangDetector",
    "describe_hang",
    "select_progress_limit_s",
]
