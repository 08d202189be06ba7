"""The scheduler's side of deliveries: which are due, claims of attempts, and their outcomes.

An attempt is claimed in one transaction and its outcome is recorded in another, so that none is
open while a request is sent. A claim moves the next attempt into the future. If its process dies
before it records an outcome, the delivery is due again then: each one is sent at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller, ServiceUser
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.webhooks.retries import MAX_ATTEMPTS, DeliveryState, retry_delay_s
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.webhooks import is_served
from accordion_service.store.tables.models import DeliveryRow, UserRow, WebhookRow, WebhookSecretRow
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.webhook_messages import lock_deliveries

CLAIM_S = 60.0
"""Seconds for which an attempt belongs to the process that claimed it: three times as long as it
may take, which is 10 s for the name and 10 s for the request.
"""
MAX_DUE = 1000
"""Maximum number of webhooks that one look for due messages returns."""
GONE = 410
"""HTTP status "Gone": the receiver wants no more messages, and its webhook is disabled."""
DELIVERY = Caller(user=ServiceUser.WEBHOOK_DELIVERY.value, scopes=frozenset())
"""User of disabled webhooks in the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWebhook:
    """A webhook with a delivery that is due."""

    id: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """One attempt to deliver a message."""

    id: str
    webhook_id: str
    version: int
    attempts: int
    """Attempts so far, with this one."""
    name: str
    """Name of the webhook."""
    user: str
    url: str
    encrypted: str
    """Encrypted secret of the signatures."""
    body: str
    previous: tuple[str, ...] = ()
    """Encrypted secrets that were replaced and are still valid, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """Outcome of an attempt."""

    response_status: int | None = None
    """HTTP status of the response; None without a response."""
    message: str = ""
    """Why it failed; empty if it succeeded."""


class DeliveryQueue:
    """Claims deliveries and records outcomes; two schedulers may do so at once."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def list_due(self, *, without: Collection[str] = ()) -> list[DueWebhook]:
        """Return the webhooks with a due delivery, the one that waits longest first, without these
        and without those that are not served; at most `MAX_DUE`.
        """
        due = (
            select(DeliveryRow.webhook_id, WebhookRow.user)
            .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
            .join(UserRow, UserRow.name == WebhookRow.user)
            .where(
                DeliveryRow.next_attempt_at <= self._clock(),
                *is_served(),
            )
        )
        if without:
            due = due.where(DeliveryRow.webhook_id.not_in(without))
        oldest_first = (
            due.group_by(DeliveryRow.webhook_id, WebhookRow.user)
            .order_by(func.min(DeliveryRow.next_attempt_at), DeliveryRow.webhook_id)
            .limit(MAX_DUE)
        )
        with self._database.read() as session:
            if session.execute(due.limit(1)).first() is None:
                return []
            found = session.execute(oldest_first)
            return [DueWebhook(id=webhook_id, user=user) for webhook_id, user in found]

    def claim(self, webhook_id: str) -> ClaimedDelivery | None:
        """Claim the delivery of a webhook that has been due longest; None if there is none, or if
        the webhook is not served.

        A delivery whose last attempt has no outcome, because its process died, is given up.
        """
        now = self._clock()
        served = (
            select(WebhookRow)
            .join(UserRow, UserRow.name == WebhookRow.user)
            .where(WebhookRow.id == webhook_id, *is_served())
        )
        with self._database.write() as session:
            webhook = session.scalar(served)
            if webhook is None:
                return None
            row = _lock_next(session, webhook_id, now=now)
            while row is not None and row.attempts >= MAX_ATTEMPTS:
                row.state, row.next_attempt_at, row.done_at = DeliveryState.DEAD.value, None, now
                row.version += 1
                row.message = f"given up: none of {row.attempts} attempts came to an end"
                session.flush()
                row = _lock_next(session, webhook_id, now=now)
            if row is None:
                return None
            claimed = _claim_row(row, webhook, now=now)
            return replace(claimed, previous=_read_previous(session, webhook_id, now=now))

    def release(self, claimed: ClaimedDelivery) -> None:
        """End a claim without an attempt: the delivery is due again, with as many attempts as
        before it.
        """
        before = claimed.attempts - 1
        with self._database.write() as session:
            _update(
                session,
                claimed,
                AttemptOutcome(),
                attempts=before,
                next_attempt_at=self._clock(),
            )

    def record_success(self, claimed: ClaimedDelivery, outcome: AttemptOutcome) -> bool:
        """Record that a message was delivered; return whether the claim was still valid."""
        with self._database.write() as session:
            done = _done_as(DeliveryState.DELIVERED, self._clock())
            return _update(session, claimed, outcome, **done)

    def record_failure(
        self, claimed: ClaimedDelivery, outcome: AttemptOutcome, *, random_fraction: float
    ) -> DeliveryState | None:
        """Record that an attempt failed; return the state in which the delivery is now, or None if
        nothing was recorded because the claim is no longer valid.

        A response of 410 disables the webhook. `random_fraction` is a random number from 0 to 1,
        for the time of the next attempt.
        """
        now, delay_s = self._clock(), retry_delay_s(claimed.attempts, random_fraction)
        is_gone = outcome.response_status == GONE
        with self._database.write() as session:
            if is_gone:
                _disable(session, claimed.webhook_id, now=now)
            if is_gone or delay_s is None:
                dead = _done_as(DeliveryState.DEAD, now)
                return DeliveryState.DEAD if _update(session, claimed, outcome, **dead) else None
            is_valid = _update(session, claimed, outcome, next_attempt_at=now + delay_s)
            return DeliveryState.PENDING if is_valid else None


def _lock_next(session: Session, webhook_id: str, *, now: float) -> DeliveryRow | None:
    """Return the delivery of a webhook that has been due longest, locked."""
    due = (
        select(DeliveryRow)
        .where(DeliveryRow.webhook_id == webhook_id, DeliveryRow.next_attempt_at <= now)
        .order_by(DeliveryRow.next_attempt_at, DeliveryRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return session.scalar(due)


def _read_previous(session: Session, webhook_id: str, *, now: float) -> tuple[str, ...]:
    """Return the replaced secrets of a webhook that are still valid, newest first."""
    query = (
        select(WebhookSecretRow.encrypted)
        .where(WebhookSecretRow.webhook_id == webhook_id, WebhookSecretRow.valid_until > now)
        .order_by(WebhookSecretRow.valid_until.desc())
    )
    return tuple(session.scalars(query))


def _claim_row(row: DeliveryRow, webhook: WebhookRow, *, now: float) -> ClaimedDelivery:
    row.version, row.attempts = row.version + 1, row.attempts + 1
    row.next_attempt_at = now + CLAIM_S
    row.response_status, row.message = None, ""
    return ClaimedDelivery(
        id=row.id,
        webhook_id=webhook.id,
        version=row.version,
        attempts=row.attempts,
        name=webhook.name,
        user=webhook.user,
        url=webhook.url,
        encrypted=webhook.encrypted,
        body=row.body,
    )


def _done_as(state: DeliveryState, now: float) -> dict[str, str | float | None]:
    """Return the columns of a delivery that is tried no more."""
    return {"state": state.value, "next_attempt_at": None, "done_at": now}


def _update(
    session: Session,
    claimed: ClaimedDelivery,
    outcome: AttemptOutcome,
    **values: str | float | None,
) -> bool:
    """Change a delivery unless it was claimed or sent again since; return whether it was changed.

    One that was given up since may still turn out to be delivered, but is not tried again.
    """
    query = update(DeliveryRow).where(
        DeliveryRow.id == claimed.id, DeliveryRow.version == claimed.version
    )
    if "state" not in values:
        query = query.where(DeliveryRow.state == DeliveryState.PENDING.value)
    found = session.execute(
        query.values(response_status=outcome.response_status, message=outcome.message, **values)
    )
    return isinstance(found, CursorResult) and found.rowcount == 1


def _disable(session: Session, webhook_id: str, *, now: float) -> None:
    """Disable a webhook, and give up all its messages that wait."""
    webhook = session.get(WebhookRow, webhook_id, with_for_update=True)
    if webhook is None or webhook.disabled_at is not None:
        return
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    webhook.disabled_at = now
    webhook.disabled_reason = f"its receiver responded with 410 (Gone) at {at}"
    after = {"user": webhook.user, "reason": webhook.disabled_reason}
    append_audit(
        session, DELIVERY, AuditAction.WEBHOOK_DISABLED, subject=webhook.name, after=after, now=now
    )
    waiting = (
        DeliveryRow.webhook_id == webhook_id,
        DeliveryRow.state == DeliveryState.PENDING.value,
    )
    lock_deliveries(session, *waiting)
    session.execute(
        update(DeliveryRow)
        .where(*waiting)
        .values(**_done_as(DeliveryState.DEAD, now), message=f"given up: {webhook.disabled_reason}")
    )


__all__ = [
    "AttemptOutcome",
    "ClaimedDelivery",
    "DeliveryQueue",
    "DueWebhook",
]
