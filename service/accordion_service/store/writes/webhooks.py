"""Webhooks of users in the database, and what users do with their deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

import uuid_utils
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.webhooks.retries import SECRET_OVERLAP_S, DeliveryState
from accordion_service.errors import Conflict, Forbidden, NotFound
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.webhooks import ALL_USERS
from accordion_service.store.tables.models import DeliveryRow, UserRow, WebhookRow, WebhookSecretRow
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.webhook_messages import (
    give_up_oldest,
    lock_deliveries,
    queue_test_message,
)

MAX_WEBHOOKS = 20
"""Maximum number of webhooks of a user."""
MAX_PREVIOUS_SECRETS = 3
"""Maximum number of replaced secrets of a webhook that are still valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedWebhook:
    """A webhook that a caller asks for; its URL has been checked."""

    name: str
    url: str
    statuses: Sequence[Status]
    label: str | None
    all_jobs: bool
    service_url: str
    encrypted: str
    """Encrypted secret of its signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWebhook:
    """A webhook, with the number of its deliveries by state."""

    row: WebhookRow
    pending: int = 0
    dead: int = 0
    previous_until: float | None = None
    """When the last replaced secret ends, in seconds since 1970; None if none is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFilter:
    """Filter of the deliveries of a webhook; None matches all."""

    limit: int
    state: DeliveryState | None = None
    before_id: str | None = None
    """Delivery that ended the previous page."""


class WebhookStore:
    """Reads and writes the webhooks of callers; those of other users do not exist for them."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def list_webhooks(self, user: str) -> list[CountedWebhook]:
        """Return the webhooks of a user, by name."""
        query = select(WebhookRow).where(WebhookRow.user == user).order_by(WebhookRow.name)
        now = self._clock()
        with self._database.read() as session:
            rows = session.scalars(query).all()
            return [_count_deliveries(session, row, now=now) for row in rows]

    def add_webhook(self, caller: Caller, request: RequestedWebhook) -> WebhookRow:
        """Add a webhook of the caller.

        Raises:
            Forbidden: it is for the jobs of all users, and the caller may not see them.
            Conflict: the caller has one of this name, or too many.
        """
        if request.all_jobs and Scope.READ_ALL not in caller.scopes:
            raise Forbidden(
                f"a webhook for the jobs of all users needs the scope {Scope.READ_ALL.value!r};"
                " leave all_jobs (--all-jobs) out to get those of your own jobs"
            )
        now = self._clock()
        with self._database.write() as session:
            # Locked, so that two requests at once take neither the last place nor the same name.
            session.get(UserRow, caller.user, with_for_update=True)
            _check_limit(session, caller.user, request.name)
            row = WebhookRow(
                id=str(uuid_utils.uuid7()),
                user=caller.user,
                name=request.name,
                url=request.url,
                jobs_of=ALL_USERS if request.all_jobs else caller.user,
                statuses=[status.value for status in request.statuses],
                label=request.label,
                service_url=request.service_url.rstrip("/"),
                encrypted=request.encrypted,
                created_at=now,
            )
            session.add(row)
            append_audit(
                session,
                caller,
                AuditAction.WEBHOOK_ADDED,
                subject=row.name,
                after=_describe(row),
                now=now,
            )
            return row

    def rotate_secret(
        self, caller: Caller, name: str, encrypted: str, *, is_readable: Callable[[str], bool]
    ) -> CountedWebhook:
        """Replace the secret of a webhook of the caller. Messages are signed with the old one, too,
        for `SECRET_OVERLAP_S`, unless it cannot be decrypted.

        Args:
            caller: user of the webhook.
            name: name of the webhook.
            encrypted: encrypted new secret.
            is_readable: tells whether an encrypted secret can be decrypted with the service's key.

        Raises:
            NotFound: there is none of this name.
            Forbidden: it is for the jobs of all users, and the caller may not see them.
            Conflict: it is disabled, or too many replaced secrets are still valid.
        """
        now = self._clock()
        with self._database.write() as session:
            webhook = _get_webhook(session, caller, name, lock="change")
            _refuse_unseen_jobs(webhook, caller)
            _refuse_disabled(webhook)
            _delete_useless_secrets(session, webhook, is_readable, now=now)
            if is_readable(webhook.encrypted):
                _keep_secret(session, webhook, now=now)
            webhook.encrypted = encrypted
            found = _count_deliveries(session, webhook, now=now)
            until = None if found.previous_until is None else _format_utc(found.previous_until)
            after = {"previous_valid_until": until}
            append_audit(
                session,
                caller,
                AuditAction.WEBHOOK_SECRET_ROTATED,
                subject=name,
                after=after,
                now=now,
            )
            return found

    def remove_webhook(self, caller: Caller, name: str) -> WebhookRow:
        """Remove a webhook of the caller with its deliveries, and return it.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.write() as session:
            row = _get_webhook(session, caller, name, lock="removal")
            lock_deliveries(session, DeliveryRow.webhook_id == row.id)
            session.delete(row)
            before = _describe(row)
            append_audit(
                session,
                caller,
                AuditAction.WEBHOOK_REMOVED,
                subject=name,
                before=before,
                now=self._clock(),
            )
            return row

    def list_deliveries(
        self, caller: Caller, name: str, wanted: DeliveryFilter
    ) -> list[DeliveryRow]:
        """Return deliveries of a webhook, newest first.

        Raises:
            NotFound: the caller has no webhook of this name.
            Forbidden: it is for the jobs of all users, and the caller may not see them.
        """
        with self._database.read() as session:
            webhook = _get_webhook(session, caller, name)
            _refuse_unseen_jobs(webhook, caller)
            query = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook.id)
            if wanted.state is not None:
                query = query.where(DeliveryRow.state == wanted.state.value)
            if wanted.before_id is not None:
                query = query.where(DeliveryRow.id < wanted.before_id)
            query = query.order_by(DeliveryRow.id.desc()).limit(wanted.limit)
            return list(session.scalars(query))

    def queue_test(self, caller: Caller, name: str) -> DeliveryRow:
        """Queue a message that is about no job.

        Raises:
            NotFound: the caller has no webhook of this name.
            Forbidden: it is for the jobs of all users, and the caller may not see them.
            Conflict: it is disabled.
        """
        now = self._clock()
        with self._database.write() as session:
            webhook = _get_webhook(session, caller, name, lock="change")
            _refuse_unseen_jobs(webhook, caller)
            _refuse_disabled(webhook)
            row = queue_test_message(session, webhook, now=now)
            append_audit(session, caller, AuditAction.WEBHOOK_TESTED, subject=name, now=now)
            return row

    def send_again(self, caller: Caller, name: str, delivery_id: str) -> DeliveryRow:
        """Make a delivery due now, with all attempts before it; the receiver sees the same ID.

        Raises:
            NotFound: the caller has no webhook of this name, or it has no such delivery.
            Forbidden: it is for the jobs of all users, and the caller may not see them.
            Conflict: the webhook is disabled.
        """
        now = self._clock()
        with self._database.write() as session:
            webhook = _get_webhook(session, caller, name, lock="change")
            _refuse_unseen_jobs(webhook, caller)
            _refuse_disabled(webhook)
            row = session.get(DeliveryRow, delivery_id, with_for_update=True)
            if row is None or row.webhook_id != webhook.id:
                raise NotFound(
                    f"webhook {name!r} has no delivery {delivery_id}; 'accordion webhook deliveries"
                    f" {name}' (GET /api/v1/webhooks/{name}/deliveries) lists all that are kept"
                )
            if row.state != DeliveryState.PENDING:
                give_up_oldest(session, webhook, now=now)
            before = {"delivery": row.id, "state": row.state, "attempts": row.attempts}
            row.state, row.attempts, row.version = DeliveryState.PENDING.value, 0, row.version + 1
            row.next_attempt_at, row.done_at = now, None
            append_audit(
                session,
                caller,
                AuditAction.WEBHOOK_SENT_AGAIN,
                subject=name,
                before=before,
                now=now,
            )
            return row


def _get_webhook(
    session: Session, caller: Caller, name: str, *, lock: Literal["change", "removal"] | None = None
) -> WebhookRow:
    """Return a webhook of the caller, locked against changes if it is to be changed.

    A change of status waits only for a removal: it locks the webhook's key, too.
    """
    query = select(WebhookRow).where(WebhookRow.user == caller.user, WebhookRow.name == name)
    if lock is not None:
        query = query.with_for_update(key_share=lock == "change")
    row = session.scalar(query)
    if row is None:
        raise NotFound(
            f"user {caller.user!r} has no webhook {name!r}; 'accordion webhook list'"
            " (GET /api/v1/webhooks) lists yours"
        )
    return row


def _refuse_unseen_jobs(webhook: WebhookRow, caller: Caller) -> None:
    if webhook.jobs_of == ALL_USERS and Scope.READ_ALL not in caller.scopes:
        raise Forbidden(
            f"webhook {webhook.name!r} is for the jobs of all users, which you may not see without"
            f" the scope {Scope.READ_ALL.value!r}; use a token that has it, or remove the webhook"
        )


def _check_limit(session: Session, user: str, name: str) -> None:
    names = set(session.scalars(select(WebhookRow.name).where(WebhookRow.user == user)))
    if name in names:
        raise Conflict(
            f"user {user!r} has a webhook {name!r} already; give another name (--name), or remove"
            f" it with 'accordion webhook remove {name}' (DELETE /api/v1/webhooks/{name})"
        )
    if len(names) >= MAX_WEBHOOKS:
        raise Conflict(
            f"user {user!r} has {len(names)} webhooks, the limit is {MAX_WEBHOOKS}; remove one with"
            " 'accordion webhook remove NAME'"
        )


def _refuse_disabled(webhook: WebhookRow) -> None:
    if webhook.disabled_at is not None:
        raise Conflict(
            f"webhook {webhook.name!r} is disabled ({webhook.disabled_reason}); remove it and add"
            " it again, which gives it a new secret"
        )


def _delete_useless_secrets(
    session: Session, webhook: WebhookRow, is_readable: Callable[[str], bool], *, now: float
) -> None:
    """Delete the replaced secrets of a webhook that have ended or cannot be decrypted."""
    query = select(WebhookSecretRow).where(WebhookSecretRow.webhook_id == webhook.id)
    for row in session.scalars(query):
        if row.valid_until <= now or not is_readable(row.encrypted):
            session.delete(row)
    session.flush()


def _keep_secret(session: Session, webhook: WebhookRow, *, now: float) -> None:
    """Keep the secret of a webhook, which is about to be replaced, for `SECRET_OVERLAP_S`.

    Raises:
        Conflict: too many replaced secrets are still valid.
    """
    valid = session.scalars(
        select(WebhookSecretRow.valid_until)
        .where(WebhookSecretRow.webhook_id == webhook.id)
        .order_by(WebhookSecretRow.valid_until)
    ).all()
    if len(valid) >= MAX_PREVIOUS_SECRETS:
        raise Conflict(
            f"webhook {webhook.name!r} has {len(valid)} replaced secrets that are still valid, the"
            f" limit is {MAX_PREVIOUS_SECRETS}; the first one ends at {_format_utc(valid[0])}; to"
            " end all of them now, remove the webhook and add it again"
        )
    row = WebhookSecretRow(
        id=str(uuid_utils.uuid7()),
        webhook_id=webhook.id,
        encrypted=webhook.encrypted,
        valid_until=now + SECRET_OVERLAP_S,
    )
    session.add(row)


def _format_utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def _count_deliveries(session: Session, webhook: WebhookRow, *, now: float) -> CountedWebhook:
    counts = dict.fromkeys((DeliveryState.PENDING.value, DeliveryState.DEAD.value), 0)
    query = (
        select(DeliveryRow.state, func.count())
        .where(DeliveryRow.webhook_id == webhook.id, DeliveryRow.state.in_(counts))
        .group_by(DeliveryRow.state)
    )
    for state, count in session.execute(query):
        counts[state] = count
    until = session.scalar(
        select(func.max(WebhookSecretRow.valid_until)).where(
            WebhookSecretRow.webhook_id == webhook.id, WebhookSecretRow.valid_until > now
        )
    )
    return CountedWebhook(
        row=webhook, pending=counts["PENDING"], dead=counts["DEAD"], previous_until=until
    )


def _describe(webhook: WebhookRow) -> dict[str, object]:
    """Describe a webhook for the audit log, without the path of its URL, which may be a secret."""
    return {
        "host": urlsplit(webhook.url).hostname,
        "statuses": webhook.statuses,
        "label": webhook.label,
        "all_jobs": webhook.jobs_of == ALL_USERS,
    }
