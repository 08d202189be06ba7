"""Secrets of users in the database, encrypted (`settings/secret_box.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import and_, func, not_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.errors import Conflict, NotFound
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import IS_UNFINISHED
from accordion_service.store.tables.models import JobRow, SecretRow, UserRow, WebhookRow
from accordion_service.store.tables.stored_spec import refers_to_secret
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.loggers import list_sending

MAX_SECRETS = 100
"""Maximum number of secrets of a user."""
_NAMED_JOBS = 5
"""Most jobs that the refusal to remove a secret names, and the audit log's entry of a removal."""


class SecretStore:
    """Reads and writes secrets; it never sees a value."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def list_secrets(self, user: str) -> list[SecretRow]:
        """Return the secrets of a user, by name."""
        query = select(SecretRow).where(SecretRow.user == user).order_by(SecretRow.name)
        with self._database.read() as session:
            return list(session.scalars(query))

    def read_encrypted(self, user: str, names: Collection[str]) -> dict[str, str]:
        """Return the encrypted values of those of the named secrets that the user has, by name."""
        found = self.read_all_encrypted({user}, names)
        return {name: encrypted for (_, name), encrypted in found.items()}

    def read_all_encrypted(
        self, users: Collection[str], names: Collection[str]
    ) -> dict[tuple[str, str], str]:
        """Return the encrypted values of the named secrets of several users, by user and name."""
        query = select(SecretRow.user, SecretRow.name, SecretRow.encrypted)
        query = query.where(SecretRow.user.in_(users), SecretRow.name.in_(names))
        with self._database.read() as session:
            return {(user, name): value for user, name, value in session.execute(query)}

    def count_others(self, user: str, *, secret: str = "", webhook: str = "") -> int:
        """Count the secrets of all users and webhooks that are encrypted with the key of the
        service, without the named secret or webhook of this user.
        """
        secrets = select(func.count()).where(
            not_(and_(SecretRow.user == user, SecretRow.name == secret))
        )
        webhooks = select(func.count()).where(
            not_(and_(WebhookRow.user == user, WebhookRow.name == webhook))
        )
        with self._database.read() as session:
            return (session.scalar(secrets) or 0) + (session.scalar(webhooks) or 0)

    def set_secret(
        self, caller: Caller, name: str, encrypted: str, *, makes_key: bool = False
    ) -> SecretRow:
        """Set a secret of the caller; it replaces the previous value. The audit log notes if a new
        key was made for it.

        Raises:
            Conflict: the caller has too many.
        """
        after = {"new_key": True} if makes_key else None
        try:
            return self._set_secret(caller, name, encrypted, after=after)
        except IntegrityError:
            # PostgreSQL runs writers concurrently: another one inserted it meanwhile.
            return self._set_secret(caller, name, encrypted, after=after)

    def remove_secret(self, caller: Caller, name: str, *, force: bool = False) -> SecretRow:
        """Remove a secret of the caller, and return it.

        Args:
            caller: user whose secret it is.
            name: name of the secret.
            force: whether to remove it although jobs need it.

        Raises:
            NotFound: there is none of this name.
            Conflict: unfinished jobs, or loggers that still send, refer to it.
        """
        with self._database.write() as session:
            row = session.get(SecretRow, (caller.user, name), with_for_update=True)
            if row is None:
                raise NotFound(
                    f"user {caller.user!r} has no secret {name!r}; 'accordion secret list'"
                    " (GET /api/v1/secrets) lists yours"
                )
            # The secret is locked: a submission that refers to it is stored by now, or refused.
            use = _find_use(session, caller.user, name)
            if use.jobs and not force:
                raise Conflict(_describe_use(name, use))
            session.delete(row)
            named = use.jobs[:_NAMED_JOBS]
            before = {"num_jobs": len(use.jobs), "jobs": named} if named else None
            now = self._clock()
            append_audit(
                session, caller, AuditAction.SECRET_REMOVED, subject=name, before=before, now=now
            )
            return row

    def _set_secret(
        self, caller: Caller, name: str, encrypted: str, *, after: Mapping[str, bool] | None
    ) -> SecretRow:
        now = self._clock()
        with self._database.write() as session:
            row = session.get(SecretRow, (caller.user, name), with_for_update=True)
            if row is None:
                # Locked, so that two requests at once do not both take the last place.
                session.get(UserRow, caller.user, with_for_update=True)
                owned = select(func.count()).where(SecretRow.user == caller.user)
                if (count := session.scalar(owned) or 0) >= MAX_SECRETS:
                    raise Conflict(
                        f"user {caller.user!r} has {count} secrets, the limit is {MAX_SECRETS};"
                        " remove one with 'accordion secret remove NAME'"
                    )
                row = SecretRow(user=caller.user, name=name)
                session.add(row)
            row.encrypted, row.set_at = encrypted, now
            session.flush()
            append_audit(
                session, caller, AuditAction.SECRET_SET, subject=name, after=after, now=now
            )
            return row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Jobs of a user that need a secret: their names by ID, oldest first."""

    unfinished: Mapping[str, str]
    sending: Mapping[str, str]
    """Ended jobs with loggers that are neither done nor given up."""

    @property
    def jobs(self) -> list[str]:
        """IDs of all of them."""
        return [*self.unfinished, *self.sending]


def _find_use(session: Session, owner: str, name: str) -> _Use:
    query = (
        select(JobRow.id, JobRow.name, JobRow.spec)
        .where(JobRow.owner == owner, IS_UNFINISHED)
        .order_by(JobRow.created_at, JobRow.id)
    )
    return _Use(
        unfinished={
            job.id: job.name for job in session.execute(query) if refers_to_secret(job.spec, name)
        },
        sending={
            job.id: job.name
            for job in list_sending(session, owner)
            if refers_to_secret(job.spec, name, logger=job.number)
        },
    )


def _describe_use(name: str, use: _Use) -> str:
    """Return which jobs need a secret, and how to remove it."""
    sentences = []
    if len(use.unfinished) == 1:
        sentences.append(
            f"1 unfinished job uses the secret {name!r}: {_name_jobs(use.unfinished)}; wait until"
            " it has ended, or cancel it."
        )
    elif use.unfinished:
        sentences.append(
            f"{len(use.unfinished)} unfinished jobs use the secret {name!r}:"
            f" {_name_jobs(use.unfinished)}; wait until they have ended, or cancel them."
        )
    if use.sending:
        ended = (
            "1 ended job has" if len(use.sending) == 1 else f"{len(use.sending)} ended jobs have"
        )
        sentences.append(
            f"{ended} loggers that still need the secret {name!r}: {_name_jobs(use.sending)}; wait"
            " until they have sent everything."
        )
    return (
        f"{' '.join(sentences)} 'accordion secret remove {name} --force' (DELETE"
        f" /api/v1/secrets/{name}?force=true) removes it now, and what needs it then fails"
    )


def _name_jobs(names: Mapping[str, str]) -> str:
    shown = [f"{name} ({job_id})" for job_id, name in names.items()]
    more = len(shown) - _NAMED_JOBS
    return f"{', '.join(shown[:_NAMED_JOBS])}{f' and {more} more' if more > 0 else ''}"
