"""Browser sessions that were ended by a logout, known by the digest of their cookie only."""

from __future__ import annotations

from sqlalchemy import delete

from service.store.engine import Database
from service.store.models import EndedSessionRow


def end_session(database: Database, digest: str, *, expires_at: float, now: float) -> None:
    """Let a cookie be worth nothing from now on; ending it again changes nothing."""
    with database.write() as session:
        session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= now))
        session.merge(EndedSessionRow(digest=digest, expires_at=expires_at))


def is_session_ended(database: Database, digest: str) -> bool:
    """Whether somebody logged out of the session."""
    with database.read() as session:
        return session.get(EndedSessionRow, digest) is not None
