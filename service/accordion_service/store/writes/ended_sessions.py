"""Browser sessions that were ended by a logout; only the digest of the cookie is stored."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import EndedSessionRow

_KEPT_S = 30 * 86_400.0
"""How long a row outlives its cookie: a clock that was ahead and is set back revives the cookie."""


def end_session(database: Database, digest: str, *, expires_at: float, now: float) -> None:
    """Refuse a cookie from now on; ending a session twice changes nothing."""
    oldest = now - _KEPT_S
    # Another logout of the same session, even one at the same moment, has stored the row.
    with suppress(IntegrityError), database.write() as session:
        session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= oldest))
        session.add(EndedSessionRow(digest=digest, expires_at=expires_at))


def is_session_ended(database: Database, digest: str) -> bool:
    """Whether the session was ended by a logout."""
    with database.read() as session:
        return session.get(EndedSessionRow, digest) is not None
