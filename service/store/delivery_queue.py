"""The scheduler's side of deliveries: which are due, who sends one, and what came of it.

An attempt is claimed in one transaction and its outcome is recorded in another, so that none is
open while a request is sent. A claim moves the next attempt into the future. If its process dies
before it records an outcome, the delivery is due again then: each one is sent at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session

from service.domain.webhook_retries import DeliveryState, retry_delay_s
from service.store.database import Database
from service.store.models import DeliveryRow, UserRow, WebhookRow

CLAIM_S = 60.0
"""Seconds for which an attempt belongs to the process that claimed it: three times as long as it
may take.
"""
GONE = 410
"""HTTP status by which a receiver says that it wants no more messages."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """What came of an attempt."""

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
        and without those of disabled users.
        """
        is_due = DeliveryRow.next_attempt_at <= self._clock()
        query = (
            select(DeliveryRow.webhook_id, WebhookRow.user)
            .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
            .join(UserRow, UserRow.name == WebhookRow.user)
            .where(
                is_due,
                DeliveryRow.webhook_id.not_in(without),
                WebhookRow.disabled_at.is_(None),
                UserRow.disabled_at.is_(None),
            )
            .group_by(DeliveryRow.webhook_id, WebhookRow.user)
            .order_by(func.min(DeliveryRow.next_attempt_at), DeliveryRow.webhook_id)
        )
        with self._database.read() as session:
            if session.scalar(select(DeliveryRow.id).where(is_due).limit(1)) is None:
                return []
            return [DueWebhook(id=found, user=user) for found, user in session.execute(query)]

    def claim(self, webhook_id: str) -> ClaimedDelivery | None:
        """Claim the delivery of a webhook that has been due longest; None if there is none."""
        now = self._clock()
        due = (
            select(DeliveryRow)
            .where(DeliveryRow.webhook_id == webhook_id, DeliveryRow.next_attempt_at <= now)
            .order_by(DeliveryRow.next_attempt_at, DeliveryRow.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        with self._database.write() as session:
            row = session.scalar(due)
            webhook = session.get(WebhookRow, webhook_id)
            if row is None or webhook is None or webhook.disabled_at is not None:
                return None
            row.version, row.attempts = row.version + 1, row.attempts + 1
            row.next_attempt_at = now + CLAIM_S
            row.response_status, row.message = None, ""
            return ClaimedDelivery(
                id=row.id,
                webhook_id=webhook_id,
                version=row.version,
                attempts=row.attempts,
                name=webhook.name,
                user=webhook.user,
                url=webhook.url,
                encrypted=webhook.encrypted,
                body=row.body,
            )

    def record_success(self, claimed: ClaimedDelivery, outcome: AttemptOutcome) -> bool:
        """Record that a message was delivered; return whether the claim was still valid."""
        with self._database.write() as session:
            done = _done_as(DeliveryState.DELIVERED, self._clock())
            return _update(session, claimed, outcome, **done)

    def record_failure(
        self, claimed: ClaimedDelivery, outcome: AttemptOutcome, *, draw: float
    ) -> DeliveryState:
        """Record that an attempt failed; return the state in which the delivery is now.

        Nothing changes if the claim is no longer valid. A response of 410 disables the webhook.
        `draw` is a random number from 0 to 1, for the time of the next attempt.
        """
        now, delay_s = self._clock(), retry_delay_s(claimed.attempts, draw)
        with self._database.write() as session:
            if outcome.response_status == GONE:
                _disable(session, claimed.webhook_id, now=now)
            if outcome.response_status == GONE or delay_s is None:
                _update(session, claimed, outcome, **_done_as(DeliveryState.DEAD, now))
                return DeliveryState.DEAD
            _update(session, claimed, outcome, next_attempt_at=now + delay_s)
            return DeliveryState.PENDING


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
    session.execute(
        update(DeliveryRow)
        .where(
            DeliveryRow.webhook_id == webhook_id,
            DeliveryRow.state == DeliveryState.PENDING.value,
        )
        .values(**_done_as(DeliveryState.DEAD, now), message=f"given up: {webhook.disabled_reason}")
    )


__all__ = [
    "AttemptOutcome",
    "ClaimedDelivery",
    "DeliveryQueue",
    "DueWebhook",
]
