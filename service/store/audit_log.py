"""Audit log: who changed what, written in the transaction of the change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.domain.access import Caller
from service.store.database import Database
from service.store.models import AuditRow

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Filter of the audit log; None matches all."""

    user: str | None = None
    subject: str | None = None
    action: str | None = None
    before_id: int | None = None
    """Entry that ended the previous page."""
    limit: int = 50


def append_audit(
    session: Session,
    caller: Caller,
    action: str,
    *,
    subject: str,
    before: Values | None = None,
    after: Values | None = None,
    now: float,
) -> None:
    """Record a change.

    Args:
        session: transaction of the change.
        caller: who makes it.
        action: what is done, such as `job.cancelled`.
        subject: ID of the job, plan or token, name of the user, secret, webhook or node, SHA-256 of
            the upload, or account of the quota.
        before: values that the change replaces; None if it creates the subject.
        after: values from now on; None if it ends the subject.
        now: seconds since 1970.
    """
    session.add(
        AuditRow(
            time=now,
            user=caller.user,
            token_id=caller.token_id,
            request_id=caller.request_id,
            action=action,
            subject=subject,
            before=None if before is None else dict(before),
            after=None if after is None else dict(after),
        )
    )


def read_audit(database: Database, wanted: AuditFilter) -> list[AuditRow]:
    """Return the entries that match a filter, newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(wanted.limit)
    if wanted.user is not None:
        query = query.where(AuditRow.user == wanted.user)
    if wanted.subject is not None:
        query = query.where(AuditRow.subject == wanted.subject)
    if wanted.action is not None:
        query = query.where(AuditRow.action == wanted.action)
    if wanted.before_id is not None:
        query = query.where(AuditRow.id < wanted.before_id)
    with database.read() as session:
        return list(session.scalars(query))
