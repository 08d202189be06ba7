"""Queues messages for webhooks: the rows that the scheduler delivers.

A message is written in the transaction of the change that it is about, so neither exists without
the other.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import uuid_utils
from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from accordion_service.domain.access import Scope, scopes_of_role
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.store.reads.webhooks import ALL_USERS
from accordion_service.store.tables.models import DeliveryRow, JobRow, UserRow, WebhookRow
from accordion_service.store.tables.stored_documents import stored_labels

JOB_STATUS = "job.status"
TEST = "webhook.test"
MAX_PENDING = 1000
"""Maximum number of messages of a webhook that wait. One more, and the oldest is given up."""
_WEBHOOKS_OF_ACCOUNTS = (
    select(WebhookRow, UserRow.role)
    .join(UserRow, UserRow.name == WebhookRow.user)
    .where(
        WebhookRow.jobs_of.in_(bindparam("accounts", expanding=True)),
        WebhookRow.disabled_at.is_(None),
        UserRow.disabled_at.is_(None),
    )
    .order_by(WebhookRow.id)
    .with_for_update(of=WebhookRow, key_share=True, read=True)
)
"""Run at every change of a status; building it costs as much as running it."""


def queue_status_messages(
    session: Session, job: JobRow, previous: Status | None, *, now: float, by: str | None = None
) -> None:
    """Queue a message about the job's new status for each webhook that wants it.

    Without webhooks for this job, this costs one query by index.

    Args:
        session: transaction of the change.
        job: job after the change, whose event is its newest.
        previous: status before the change; None for a new job.
        now: seconds since 1970. It may be the time of a record, which a worker chose: a message is
            never older than its job, and `nan` is replaced by that, too.
        by: user who caused the change; None if the service or the workers did.
    """
    now = max(job.created_at, now)
    with session.no_autoflush:
        webhooks = _find_webhooks(session, job)
    for webhook in webhooks:
        url = f"{webhook.service_url}/jobs/{job.id}"
        data = _describe_change(job, previous) | {"by": by, "url": url}
        _queue_message(session, webhook, JOB_STATUS, data=data, job=job, now=now)


def queue_test_message(session: Session, webhook: WebhookRow, *, now: float) -> DeliveryRow:
    """Queue a message that is about no job."""
    data = {"webhook": webhook.name, "user": webhook.user, "url": webhook.service_url}
    return _queue_message(session, webhook, TEST, data=data, job=None, now=now)


def _find_webhooks(session: Session, job: JobRow) -> list[WebhookRow]:
    """Return the webhooks that want the present status of a job.

    They are locked against removal until the end of the transaction: a message whose webhook was
    removed meanwhile would undo the whole change.
    """
    accounts = [ALL_USERS] if job.owner is None else [ALL_USERS, job.owner]
    found = session.execute(_WEBHOOKS_OF_ACCOUNTS, {"accounts": accounts})
    return [row for row, role in found if _is_wanted(row, role, job)]


def _is_wanted(webhook: WebhookRow, role: str, job: JobRow) -> bool:
    if webhook.jobs_of == ALL_USERS and Scope.READ_ALL not in scopes_of_role(role):
        return False
    if job.status not in webhook.statuses:
        return False
    if webhook.label is None:
        return True
    key, _, value = webhook.label.partition(":")
    return stored_labels(job).get(key) == value


def _describe_change(job: JobRow, previous: Status | None) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "name": job.name,
        "owner": job.owner,
        "labels": stored_labels(job),
        "status": job.status,
        "previous_status": previous,
        "reason": job.reason,
        "message": job.message,
        "event": job.event_seq,
    }


def _queue_message(
    session: Session,
    webhook: WebhookRow,
    kind: str,
    *,
    data: dict[str, Any],
    job: JobRow | None,
    now: float,
) -> DeliveryRow:
    give_up_oldest(session, webhook, now=now)
    body = {"type": kind, "timestamp": _format_time(now), "data": data}
    row = DeliveryRow(
        id=str(uuid_utils.uuid7()),
        webhook_id=webhook.id,
        job_id=None if job is None else job.id,
        type=kind,
        status=None if job is None else job.status,
        body=json.dumps(body),
        state=DeliveryState.PENDING.value,
        created_at=now,
        next_attempt_at=now,
    )
    session.add(row)
    return row


def give_up_oldest(session: Session, webhook: WebhookRow, *, now: float) -> None:
    """Give up the oldest waiting messages of a webhook, so that one more may wait."""
    is_pending = (
        DeliveryRow.webhook_id == webhook.id,
        DeliveryRow.state == DeliveryState.PENDING.value,
    )
    waiting = session.scalar(select(func.count()).select_from(DeliveryRow).where(*is_pending)) or 0
    if waiting < MAX_PENDING:
        return
    # One that is locked belongs to another transaction, which this one must not wait for.
    oldest = (
        select(DeliveryRow)
        .where(*is_pending)
        .order_by(DeliveryRow.id)
        .limit(waiting - MAX_PENDING + 1)
        .with_for_update(skip_locked=True)
    )
    for row in session.scalars(oldest):
        row.state, row.next_attempt_at, row.done_at = DeliveryState.DEAD.value, None, now
        row.message = (
            f"given up for newer ones: {waiting} messages of this webhook wait, and at most"
            f" {MAX_PENDING} may"
        )


def lock_deliveries(session: Session, *conditions: ColumnElement[bool]) -> None:
    """Lock deliveries until the end of the transaction, before it changes or deletes them all: in
    the order of their IDs, so that two transactions never wait for each other.
    """
    query = select(DeliveryRow.id).where(*conditions).order_by(DeliveryRow.id)
    session.execute(query.with_for_update()).all()


def _format_time(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


__all__ = [
    "MAX_PENDING",
    "give_up_oldest",
    "lock_deliveries",
    "queue_status_messages",
    "queue_test_message",
]
