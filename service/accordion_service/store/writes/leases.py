"""One scheduler at a time: a lease with a fencing token that every write of a scheduler checks."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import SCHEDULER_LEASE
from accordion_service.store.tables.models import LeaseRow
from accordion_service.store.writes.scheduler_counts import SchedulerCounts, add_counts

_RENEWALS = 3
"""Renewals within the life of a lease: two may come late before it runs out."""


class LeaseLost(Exception):
    """Another scheduler holds the lease: this one must drop its work."""


class Lease:
    """The lease of one scheduler process, held or awaited."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        lease_s: float,
    ) -> None:
        self._database = database
        self.counts = SchedulerCounts(database.errors.count_by_kind)
        """What this scheduler counts of itself; each renewal stores it."""
        self._owner = owner
        self._clock = clock
        self._monotonic = monotonic
        self._watched: tuple[int, float, float] | None = None
        """Token and renewal time of another scheduler's lease, and when they were first seen
        (monotonic).
        """
        self._lease_s = lease_s
        self._token: int | None = None
        self._renewed_at = 0.0

    def hold(self) -> int | None:
        """Return the token, renewed if due; None while another scheduler holds the lease."""
        now = self._clock()
        if self._token is not None and 0 <= now - self._renewed_at < self._lease_s / _RENEWALS:
            return self._token
        with self._database.write() as session:
            self._token = self._take_over(session, now)
        self._renewed_at = now
        return self._token

    def keep(self, token: int) -> None:
        """Renew the lease if that is due.

        Raises:
            LeaseLost: this scheduler does not hold it with this token any more.
        """
        if self.hold() != token:
            raise LeaseLost(_describe_loss(token))

    def confirm(self, token: int) -> None:
        """Check the database and renew the lease, since actions on the cluster cannot be undone.

        Raises:
            LeaseLost: a newer token was issued since, or the lease was released.
        """
        now = self._clock()
        with self._database.write() as session:
            row = _read_lease(session)
            if row is None or row.token != token or row.expires_at <= 0:
                self._token = None
                raise LeaseLost(_describe_loss(token))
            self._renew(session, row, now)
        self._renewed_at = now

    def release(self) -> None:
        """Release the lease, so that the next scheduler can start at once."""
        with self._database.write() as session:
            row = _read_lease(session)
            if row is not None and row.token == self._token:
                self._renew(session, row, self._clock())
                row.expires_at = 0.0
        self._token = None

    def _take_over(self, session: Session, now: float) -> int | None:
        row = _read_lease(session)
        if row is None:
            row = LeaseRow(
                name=SCHEDULER_LEASE, owner=self._owner, token=1, renewed_at=now, expires_at=0.0
            )
            session.add(row)
        elif row.token != self._token:
            if now < row.expires_at and not self._is_abandoned(row):
                return None
            row.owner, row.token = self._owner, row.token + 1
        self._renew(session, row, now)
        return row.token

    def _renew(self, session: Session, row: LeaseRow, now: float) -> None:
        """Extend the lease, and store what this scheduler counted of itself."""
        row.renewed_at, row.expires_at = now, now + self._lease_s
        counts = self.counts.list_all()
        row.counts = add_counts(row.counts or {}, self.counts.subtract_stored(counts))
        event.listen(session, "after_commit", lambda _: self.counts.mark_stored(counts), once=True)

    def _is_abandoned(self, row: LeaseRow) -> bool:
        """Whether another scheduler has not renewed its lease for the length of the lease.

        Measured on the monotonic clock of this process: after the wall clock was set back, an
        abandoned lease would otherwise last until the wall clock reaches its expiry. A limit in
        wall-clock time would take the lease from a live scheduler whose clock is ahead.
        """
        now, seen = self._monotonic(), (row.token, row.renewed_at)
        if self._watched is None or self._watched[:2] != seen:
            self._watched = (*seen, now)
        return now - self._watched[2] >= row.expires_at - row.renewed_at


def check_token(session: Session, token: int) -> None:
    """Lock the lease until the transaction ends.

    Raises:
        LeaseLost: this token is not the newest.
    """
    if not is_newest_token(session, token):
        raise LeaseLost(_describe_loss(token))


def is_newest_token(session: Session, token: int) -> bool:
    """Return whether this token is the newest, and lock the lease until the transaction ends."""
    row = _read_lease(session)
    return row is not None and row.token == token


def _describe_loss(token: int) -> str:
    return f"the lease with token {token} now belongs to another scheduler"


def _read_lease(session: Session) -> LeaseRow | None:
    return session.scalar(
        select(LeaseRow).where(LeaseRow.name == SCHEDULER_LEASE).with_for_update()
    )
