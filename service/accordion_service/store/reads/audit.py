"""Audit log: who changed what."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, select, tuple_

from accordion_service.domain.audit import AuditAction
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import AuditRow


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Filter of the audit log; None matches all."""

    user: str | None = None
    subject: str | None = None
    action: AuditAction | None = None
    token_id: str | None = None
    request_id: str | None = None
    time_after: float | None = None
    """Earliest time, in seconds since 1970."""
    time_before: float | None = None
    before_id: int | None = None
    """Entry that ended the previous page."""
    limit: int = 50


def read_audit(database: Database, wanted: AuditFilter) -> list[AuditRow]:
    """Return the entries that match a filter, newest first."""
    with database.read() as session:
        last = None if wanted.before_id is None else session.get(AuditRow, wanted.before_id)
        if wanted.before_id is not None and last is None:
            return []  # It was deleted by age since, and so was all that is older.
        query = select(AuditRow).where(*_conditions(wanted), *_upper_bound(wanted, last))
        newest = AuditRow.time.desc(), AuditRow.id.desc()
        return list(session.scalars(query.order_by(*newest).limit(wanted.limit)))


def _conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    wanted_values = {
        AuditRow.user: wanted.user,
        AuditRow.subject: wanted.subject,
        AuditRow.action: wanted.action,
        AuditRow.token_id: wanted.token_id,
        AuditRow.request_id: wanted.request_id,
    }
    found = [column == value for column, value in wanted_values.items() if value is not None]
    if wanted.time_after is not None:
        found.append(AuditRow.time >= wanted.time_after)
    return found


def _upper_bound(wanted: AuditFilter, last: AuditRow | None) -> list[ColumnElement[bool]]:
    """Return the lower one of the two bounds: SQLite would begin to read at either of them."""
    before = wanted.time_before
    if last is not None and (before is None or last.time < before):
        return [tuple_(AuditRow.time, AuditRow.id) < tuple_(last.time, last.id)]
    return [] if before is None else [AuditRow.time < before]
