"""Stores logins through an OpenID Connect provider: the user, its role, and a token; or that the
user has no role any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller, Role, ServiceUser, scopes_of_role
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.provider_users import ProviderUser
from accordion_service.domain.tokens import UserToken, digest_of
from accordion_service.errors import Conflict, Forbidden
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import TokenRow, UserRow
from accordion_service.store.writes.audit import append_audit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLogin:
    """A login that the provider confirmed."""

    user: ProviderUser
    token: UserToken
    """Token of the browser session. Nobody gets its secret, so only the session can use it."""
    label: str
    expires_at: float
    request_id: str


def store_login(database: Database, login: ProviderLogin, *, now: float) -> None:
    """Store a login: the user at the first one, a changed role, and a token of the user.

    A user without a role is refused. If the provider names the user's groups, so are the user's
    tokens from now on.

    Raises:
        Forbidden: the user has no role, is disabled, or has no name that is free.
        Conflict: the user logs in for the first time twice at the same moment.
    """
    role = login.user.role
    if role is None:
        if login.user.has_lost_access:
            with database.write() as session:
                _revoke_tokens(session, login, now)
        raise Forbidden(login.user.role_problem)
    try:
        with database.write() as session:
            _store_login(session, login, role, now=now)
    except IntegrityError:
        raise Conflict(f"user {login.user.name!r} was added meanwhile; log in again") from None


def _store_login(session: Session, login: ProviderLogin, role: Role, *, now: float) -> None:
    user = login.user
    row = session.scalar(_select_user(user))
    before = None if row is None else {"role": row.role}
    if row is None:
        row = _add_user(session, user, role, now=now)
    if row.disabled_at is not None:
        raise Forbidden(f"user {row.name!r} is disabled; ask an admin")
    row.role = role.value
    session.flush()
    scopes = scopes_of_role(row.role)
    caller = Caller(
        user=row.name, scopes=scopes, token_id=login.token.id, request_id=login.request_id
    )
    session.add(
        TokenRow(
            id=login.token.id,
            user=row.name,
            label=login.label,
            digest=digest_of(login.token.secret),
            scopes=sorted(scope.value for scope in scopes),
            created_at=now,
            expires_at=login.expires_at,
        )
    )
    after = {"role": row.role, "issuer": user.issuer}
    action = AuditAction.USER_ADDED if before is None else AuditAction.USER_CHANGED
    if before != {"role": row.role}:
        append_audit(session, caller, action, subject=row.name, before=before, after=after, now=now)
    append_audit(
        session, caller, AuditAction.USER_LOGGED_IN, subject=row.name, after=after, now=now
    )


def _revoke_tokens(session: Session, login: ProviderLogin, now: float) -> None:
    """Refuse all tokens of a user, and with them the user's browser sessions."""
    row = session.scalar(_select_user(login.user))
    if row is None:
        return
    caller = Caller(user=row.name, scopes=frozenset(), request_id=login.request_id)
    tokens = select(TokenRow).where(TokenRow.user == row.name, TokenRow.revoked_at.is_(None))
    for token in session.scalars(tokens.order_by(TokenRow.id).with_for_update()):
        token.revoked_at = now
        before = {"user": row.name, "label": token.label}
        append_audit(
            session, caller, AuditAction.TOKEN_REVOKED, subject=token.id, before=before, now=now
        )


def _select_user(user: ProviderUser) -> Select[UserRow]:
    known = UserRow.issuer == user.issuer, UserRow.subject == user.subject
    return select(UserRow).where(*known).with_for_update()


def _add_user(session: Session, user: ProviderUser, role: Role, *, now: float) -> UserRow:
    """Add a user, whose name must be free.

    Raises:
        Forbidden: the claims give no name, or it belongs to another user.
    """
    if not user.name:
        raise Forbidden(user.name_problem)
    if user.name in list(ServiceUser):
        raise Forbidden(
            f"{user.name!r} stands for the service itself in the audit log; ask an admin for"
            " another name at the provider"
        )
    if session.get(UserRow, user.name) is not None:
        raise Forbidden(
            f"there is a user {user.name!r} already who does not log in as you do, and no account"
            " is handed over; ask an admin for a token of that user, or for another name at the"
            " provider"
        )
    row = UserRow(
        name=user.name,
        role=role.value,
        created_at=now,
        issuer=user.issuer,
        subject=user.subject,
    )
    session.add(row)
    return row
