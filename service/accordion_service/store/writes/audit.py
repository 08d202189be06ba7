"""Audit log: who changed what, written in the transaction of the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.store.tables.models import AuditRow

Values = Mapping[str, Any]


def append_audit(
    session: Session,
    caller: Caller,
    action: AuditAction,
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
        action: what is done.
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
            action=action.value,
            subject=subject,
            before=None if before is None else dict(before),
            after=None if after is None else dict(after),
        )
    )
