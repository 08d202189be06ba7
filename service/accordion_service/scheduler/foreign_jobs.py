"""Protects jobs of other installations on a shared Ray cluster, and reports them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import structlog

from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.protocol import Runtime

CONFLICT_S = 10.0
"""How long another scheduler must hold the claim before it counts as one with another database; a
predecessor with the same database holds it no longer than its lease."""
_RENEWALS = 3
"""Renewals within the lifetime of a claim; two may be late before it expires."""
_log = structlog.get_logger()


class ClusterClaim:
    """Exclusive right of one scheduler to serve its installation on the cluster.

    The lease in the database keeps two schedulers apart that share it. This claim, held by the
    installation's Accordion actor, keeps those apart whose databases are copies of each other, such
    as a restored backup beside the original.
    """

    def __init__(
        self, runtime: Runtime, *, scheduler: str, clock: Callable[[], float], last_s: float
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._clock = clock
        self._last_s = last_s
        self._held_at: float | None = None
        self._refused_since: float | None = None
        self._conflict = ""

    def hold(self) -> bool:
        """Claim the cluster, or renew a claim that is due; False until a predecessor's claim
        expires.

        Raises:
            RuntimeUnavailable: the cluster cannot be reached, or another scheduler has kept its
                claim for `CONFLICT_S`; then this one never claims again, since the other one's next
                pause would let it in.
        """
        now = self._clock()
        if self._conflict:
            raise RuntimeUnavailable(self._conflict)
        if self._held_at is not None and 0 <= now - self._held_at < self._last_s / _RENEWALS:
            return True
        self._held_at = None
        holder = self._runtime.claim(self._scheduler, last_s=self._last_s)
        if holder == self._scheduler:
            self._held_at, self._refused_since = now, None
            return True
        self._record_refusal(holder, now)
        return False

    def release(self) -> None:
        """Release the claim, so that a successor with the same database can start at once."""
        if self._held_at is not None:
            self._held_at = None
            with suppress(RuntimeUnavailable):
                self._runtime.claim(self._scheduler, last_s=0.0)

    def _record_refusal(self, holder: str, now: float) -> None:
        self._refused_since = now if self._refused_since is None else min(now, self._refused_since)
        if now - self._refused_since < CONFLICT_S:
            return
        self._conflict = (
            f"scheduler {holder} serves this installation on the same cluster from another"
            " database; is this database a restored backup or a copy? Nothing is touched; stop one"
            " of the two, or give this one another cluster, then restart it"
        )
        _log.error("claim refused", error=self._conflict)
        raise RuntimeUnavailable(self._conflict)


class ForeignJobs:
    """Reports supervisors on the cluster that do not belong to this database; they are never
    touched.
    """

    def __init__(self) -> None:
        self.message = ""
        """One sentence about the supervisors last seen; empty if all of them are ours."""

    def update(self, by_installation: Mapping[str, int], unknown: Collection[str]) -> None:
        """Update the message.

        Args:
            by_installation: number of supervisors of other installations, by installation id.
            unknown: ids of jobs of this installation that the database does not have.
        """
        told = [_describe_others(by_installation)] if by_installation else []
        if unknown:
            told.append(
                f"{_format_count(len(unknown), 'job')} that this database does not know, as after a"
                " restored backup or with another ACCORDION_DATABASE_URL"
            )
        message = f"left alone: {' and '.join(told)}" if told else ""
        if message != self.message:
            _log.warning("foreign jobs", message=message or "gone", unknown=sorted(unknown))
        self.message = message


def _describe_others(by_installation: Mapping[str, int]) -> str:
    listed = ", ".join(
        f"{id_ or 'without an id'}: {number}" for id_, number in sorted(by_installation.items())
    )
    return (
        f"{_format_count(sum(by_installation.values()), 'job')} of other installations ({listed})"
    )


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
