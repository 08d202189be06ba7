"""One-time login links in the database; only the digest of the secret is stored."""

from __future__ import annotations

from sqlalchemy import delete

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import LoginLinkRow
from accordion_service.store.writes.audit import append_audit

LINK_LIFETIME_S = 900.0
"""Lifetime of a login link, in seconds."""


def add_login_link(database: Database, caller: Caller, digest: str, *, now: float) -> float:
    """Store a link, remove expired ones, and return the expiry of the new one."""
    expires_at = now + LINK_LIFETIME_S
    with database.write() as session:
        session.execute(delete(LoginLinkRow).where(LoginLinkRow.expires_at <= now))
        session.add(LoginLinkRow(digest=digest, token_id=caller.token_id, expires_at=expires_at))
        append_audit(session, caller, AuditAction.LOGIN_LINK_ADDED, subject=caller.user, now=now)
    return expires_at


def use_login_link(database: Database, digest: str, now: float) -> str | None:
    """Use up a link; return the ID of the token that created it, empty for the admin token, or
    None if the link does not exist or has expired. Only one of several concurrent requests
    succeeds.
    """
    with database.write() as session:
        row = session.get(LoginLinkRow, digest, with_for_update=True)
        # A clock that was set back does not extend its lifetime.
        if row is None or not now < row.expires_at <= now + LINK_LIFETIME_S:
            return None
        session.delete(row)
        return row.token_id
