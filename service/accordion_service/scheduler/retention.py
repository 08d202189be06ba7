"""Deletes what is older, or more, than is kept: ended jobs, their events and output, audit entries,
idempotency keys, tokens that have ended, failures of nodes, deliveries of webhooks, and their
replaced secrets.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from accordion_service.domain.access import Caller, Scope, ServiceUser
from accordion_service.errors import ApiError
from accordion_service.process.trusted_clock import TrustedClock
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.deletion import JobDeletion
from accordion_service.store.writes.expired_history import ExpiredHistory
from accordion_service.store.writes.old_rows import (
    delete_audit,
    delete_deliveries,
    delete_ended_tokens,
    delete_keys,
    delete_node_failures,
    delete_replaced_secrets,
)
from accordion_service.store.writes.steering import accept_any

INTERVAL_S = 60.0
"""Seconds between two looks for ended jobs and old audit entries."""
KEY_RETENTION_S = 7 * 86_400.0
"""How long an idempotency key is kept."""
TOKEN_RETENTION_S = 90 * 86_400.0
"""How long a token stays listed after it was revoked or expired. The audit log keeps its ID."""
NODE_FAILURE_RETENTION_S = 7 * 86_400.0
"""How long a failure that may be the fault of a node is kept."""
DELIVERED_RETENTION_S = 7 * 86_400.0
"""How long a delivery of a webhook is kept that succeeded."""
DEAD_RETENTION_S = 30 * 86_400.0
"""How long a delivery of a webhook is kept that was given up."""
_KEY_INTERVAL_S = 3600.0
"""Seconds between two looks for old idempotency keys, tokens and secrets, which have no index by
time, and for old deliveries.
"""
_BATCH = 50
"""Jobs that are deleted at a time: each is a transaction, and the scheduler's lease is short."""
_TRIMMED_JOBS = 10
"""Jobs whose history is trimmed at a time: each is a transaction that deletes up to 2,000 rows."""
_ROW_BATCH = 5000
"""Audit entries, tokens or deliveries that are deleted at a time."""
RETENTION = Caller(user=ServiceUser.RETENTION.value, scopes=frozenset(Scope))
"""User of these deletions in the audit log."""
_log = structlog.get_logger()


class Retention:
    """Deletes ended jobs; `clock` returns seconds since 1970."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._jobs = JobReads(database)
        self._deletion = JobDeletion(database, clock, RETENTION)
        self._settings = settings
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._monotonic = monotonic
        self._looked_at: float | None = None

    def delete_if_due(self) -> None:
        """Delete some of the jobs that are not kept any longer, the oldest first."""
        now = self._monotonic()
        if self._looked_at is not None and now - self._looked_at < INTERVAL_S:
            return
        rows = self._list_expired()
        # More may be left: the next turn goes on.
        self._looked_at = None if len(rows) == _BATCH else now
        for row in rows:
            try:
                self._deletion.delete_job(row.id, accept_any)
            except ApiError as error:
                _log.info("job not deleted", job_id=row.id, reason=str(error))

    def _list_expired(self) -> list[JobRow]:
        kept_s, most = self._settings.job_retention_s, self._settings.max_ended_jobs
        now = self._trusted.read(kept_s) if kept_s else None
        old = [] if now is None else self._jobs.ended(before=now - kept_s, limit=_BATCH)
        if old or not most:
            return old
        return self._jobs.ended(beyond=most, limit=_BATCH)


class HistoryRetention:
    """Trims the events and output of ended jobs; `clock` returns seconds since 1970."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._expired = ExpiredHistory(database, clock)
        self._kept_s = settings.history_retention_s
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._monotonic = monotonic
        self._due = 0.0

    def trim_if_due(self) -> None:
        """Remove some of the events and output that are not kept any longer, of the jobs that ended
        first.
        """
        now = self._monotonic()
        if not self._kept_s or now < self._due:
            return
        time = self._trusted.read(self._kept_s)
        if time is None:
            return
        before = time - self._kept_s
        job_ids = self._expired.list_due(ended_before=before, limit=_TRIMMED_JOBS)
        have_more = [self._expired.trim_job(job_id, ended_before=before) for job_id in job_ids]
        if job_ids:
            _log.info("history of ended jobs trimmed", jobs=len(job_ids))
        # More may be left: the next turn goes on.
        is_done = len(job_ids) < _TRIMMED_JOBS and not any(have_more)
        self._due = now + INTERVAL_S if is_done else now


class RowRetention:
    """Deletes old audit entries, idempotency keys, tokens, failures of nodes, deliveries and
    replaced secrets; `clock` returns seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._database = database
        self._kept_s = settings.audit_retention_s
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._monotonic = monotonic
        self._audit_due = self._keys_due = self._deliveries_due = 0.0

    def delete_if_due(self) -> None:
        """Delete some of the rows that are not kept any longer, the oldest first."""
        due = self._monotonic()
        if self._kept_s and due >= self._audit_due:
            self._delete_audit(due)
        time = self._trusted.read()
        if time is None:
            return
        if due >= self._keys_due:
            self._keys_due = due + _KEY_INTERVAL_S
            delete_keys(self._database, before=time - KEY_RETENTION_S)
            delete_node_failures(self._database, before=time - NODE_FAILURE_RETENTION_S)
            delete_replaced_secrets(self._database, before=time)
            ended_before = time - TOKEN_RETENTION_S
            delete_ended_tokens(self._database, before=ended_before, limit=_ROW_BATCH)
        if due >= self._deliveries_due:
            deleted = self._delete_deliveries(time)
            self._deliveries_due = due if deleted == _ROW_BATCH else due + _KEY_INTERVAL_S

    def _delete_deliveries(self, now: float) -> int:
        return delete_deliveries(
            self._database,
            delivered_before=now - DELIVERED_RETENTION_S,
            dead_before=now - DEAD_RETENTION_S,
            limit=_ROW_BATCH,
        )

    def _delete_audit(self, due: float) -> None:
        time = self._trusted.read(self._kept_s)
        if time is None:
            return
        deleted = delete_audit(self._database, before=time - self._kept_s, limit=_ROW_BATCH)
        if deleted:
            _log.info("audit entries deleted", count=deleted, older_than_s=self._kept_s)
        # More may be left: the next turn goes on.
        self._audit_due = due if deleted == _ROW_BATCH else due + INTERVAL_S
