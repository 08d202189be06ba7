"""One-time codes for tokens of command lines in the database; only digests are stored."""

from __future__ import annotations

from sqlalchemy import delete

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import LoginCodeRow
from accordion_service.store.writes.audit import append_audit

CODE_LIFETIME_S = 60.0
"""Lifetime of a code, in seconds: the browser hands it over at once."""


def add_login_code(database: Database, caller: Caller, row: LoginCodeRow, *, now: float) -> None:
    """Store a code, and remove expired ones."""
    with database.write() as session:
        session.execute(delete(LoginCodeRow).where(LoginCodeRow.expires_at <= now))
        session.add(row)
        append_audit(
            session,
            caller,
            AuditAction.LOGIN_CODE_ADDED,
            subject=caller.user,
            after={"label": row.label},
            now=now,
        )


def use_login_code(database: Database, digest: str, now: float) -> LoginCodeRow | None:
    """Use up a code and return it; None if it does not exist or has expired. Only one of several
    concurrent requests succeeds.
    """
    with database.write() as session:
        row = session.get(LoginCodeRow, digest, with_for_update=True)
        # A clock that was set back does not extend its lifetime.
        if row is None or not now < row.expires_at <= now + CODE_LIFETIME_S:
            return None
        session.delete(row)
        return row
