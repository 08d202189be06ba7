"""What all writes for a caller have in common."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.store.engine.database import Database
from accordion_service.store.writes.audit import Values, append_audit


class CallerWrites:
    """Base of classes that write for a caller; `clock` returns seconds since 1970."""

    def __init__(self, database: Database, clock: Callable[[], float], caller: Caller) -> None:
        self._database = database
        self._clock = clock
        self._caller = caller

    def _append_audit(
        self,
        session: Session,
        action: AuditAction,
        subject: str,
        *,
        now: float,
        before: Values | None = None,
        after: Values | None = None,
    ) -> None:
        """Record a change by the caller; see `append_audit`."""
        append_audit(
            session, self._caller, action, subject=subject, before=before, after=after, now=now
        )
