"""Audit log: who changed what."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select, tuple_

from accordion_service.schemas.queries import AuditQuery
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import AuditRow


def read_audit(
    database: Database, wanted: AuditQuery, *, limit: int, before_id: int | None = None
) -> list[AuditRow]:
    """Return the entries that match a filter, newest first; `before_id` ended the previous page."""
    with database.read() as session:
        last = None if before_id is None else session.get(AuditRow, before_id)
        if before_id is not None and last is None:
            return []  # It was deleted by age since, and so was all that is older.
        query = select(AuditRow).where(*_conditions(wanted), *_upper_bound(wanted, last))
        newest = AuditRow.time.desc(), AuditRow.id.desc()
        return list(session.scalars(query.order_by(*newest).limit(limit)))


def _conditions(wanted: AuditQuery) -> list[ColumnElement[bool]]:
    wanted_values = {
        AuditRow.user: wanted.user,
        AuditRow.subject: wanted.subject,
        AuditRow.action: wanted.action,
        AuditRow.token_id: wanted.token_id,
        AuditRow.request_id: wanted.request_id,
    }
    found = [column == value for column, value in wanted_values.items() if value is not None]
    if wanted.time_after is not None:
        found.append(AuditRow.time >= wanted.time_after.timestamp())
    return found


def _upper_bound(wanted: AuditQuery, last: AuditRow | None) -> list[ColumnElement[bool]]:
    """Return the lower one of the two bounds: SQLite would begin to read at either of them."""
    before = None if wanted.time_before is None else wanted.time_before.timestamp()
    if last is not None and (before is None or last.time < before):
        return [tuple_(AuditRow.time, AuditRow.id) < tuple_(last.time, last.id)]
    return [] if before is None else [AuditRow.time < before]
