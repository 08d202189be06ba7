"""Users and their tokens in the database; only digests of secrets are stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from accordion_service.domain.access import (
    ADMIN_USER,
    Caller,
    Role,
    Scope,
    ServiceUser,
    scopes_of_role,
)
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.tokens import UserToken, digest_of, token_matches
from accordion_service.errors import ApiError, Conflict, Forbidden, NotFound, Unauthorized
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import TokenRow, UserRow
from accordion_service.store.writes.audit import append_audit


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedToken:
    """A token that a caller asks for."""

    user: str
    label: str
    scopes: Collection[Scope] | None
    """Requested scopes; None for all that the user's role and the caller's token allow."""
    expires_at: float | None
    """Expiry in seconds since 1970; None for a token that does not expire."""


class AccountStore:
    """Reads and writes users and tokens."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def users(self) -> list[UserRow]:
        """All users, by name."""
        with self._database.read() as session:
            return list(session.scalars(select(UserRow).order_by(UserRow.name)))

    def add_user(self, caller: Caller, name: str, role: Role) -> UserRow:
        """Add a user.

        Raises:
            Conflict: the name is taken, also by a disabled user or by the service itself.
        """
        if name in list(ServiceUser):
            raise Conflict(
                f"{name!r} stands for the service itself in the audit log; choose another name"
            )
        now = self._clock()
        row = UserRow(name=name, role=role.value, created_at=now)
        try:
            with self._database.write() as session:
                session.add(row)
                session.flush()
                append_audit(
                    session,
                    caller,
                    AuditAction.USER_ADDED,
                    subject=name,
                    after={"role": role},
                    now=now,
                )
        except IntegrityError:
            raise Conflict(
                f"there is a user {name!r} already; change the role with 'accordion"
                f" user change {name}' (PATCH /api/v1/users/{name}), or choose another name"
            ) from None
        return row

    def change_user(
        self, caller: Caller, name: str, *, role: Role | None, disabled: bool | None
    ) -> UserRow:
        """Change the role of a user, and refuse or accept the user's tokens; None changes nothing.

        Raises:
            NotFound: there is no such user.
            Conflict: it is the user of the admin token.
        """
        now = self._clock()
        with self._database.write() as session:
            row = _get_user(session, name)
            if name == ADMIN_USER:
                raise Conflict(
                    f"{ADMIN_USER!r} is the user of the service's admin token and cannot be"
                    " changed; revoke single tokens instead"
                )
            before = {"role": row.role, "disabled": row.disabled_at is not None}
            if role is not None:
                row.role = role.value
            if disabled is not None and disabled != before["disabled"]:
                row.disabled_at = now if disabled else None
            after = {"role": row.role, "disabled": row.disabled_at is not None}
            if after != before:
                append_audit(
                    session,
                    caller,
                    AuditAction.USER_CHANGED,
                    subject=name,
                    before=before,
                    after=after,
                    now=now,
                )
            return row

    def tokens(self, user: str | None) -> list[TokenRow]:
        """Tokens of a user, or of all users (None), newest first, with revoked ones."""
        query = select(TokenRow).order_by(TokenRow.created_at.desc(), TokenRow.id)
        if user is not None:
            query = query.where(TokenRow.user == user)
        with self._database.read() as session:
            return list(session.scalars(query))

    def add_token(self, caller: Caller, token: UserToken, request: RequestedToken) -> TokenRow:
        """Store a token of the caller, which allows no more than the caller's and ends no later, or
        with the scope `admin` one of another user.

        Raises:
            NotFound: there is no such user.
            Forbidden: the caller may not create this token.
            Unauthorized: the caller's token was revoked meanwhile.
        """
        now = self._clock()
        with self._database.write() as session:
            _check_still_accepted(session, caller)
            user = _get_user(session, request.user)
            scopes = _limit_scopes(caller, user, request)
            row = TokenRow(
                id=token.id,
                user=user.name,
                label=request.label,
                made_by=caller.token_id or None,
                digest=digest_of(token.secret),
                scopes=[scope.value for scope in sorted(scopes)],
                created_at=now,
                expires_at=request.expires_at,
            )
            session.add(row)
            after = {
                "user": user.name,
                "label": row.label,
                "scopes": row.scopes,
                "expires_at": None if row.expires_at is None else _format_time(row.expires_at),
            }
            append_audit(
                session, caller, AuditAction.TOKEN_ADDED, subject=row.id, after=after, now=now
            )
            return row

    def revoke_token(self, caller: Caller, token_id: str) -> TokenRow:
        """Refuse a token, and all that were created with it, from now on; a revoked one does not
        change.

        Raises:
            NotFound: there is no such token, or it belongs to another user and the caller does not
                have the scope `admin`.
        """
        now = self._clock()
        with self._database.write() as session:
            row = session.get(TokenRow, token_id, with_for_update=True)
            if row is None or (row.user != caller.user and Scope.ADMIN not in caller.scopes):
                raise NotFound(
                    f"there is no token with the ID {token_id}; 'accordion token list'"
                    " (GET /api/v1/tokens) lists yours"
                )
            for revoked in _with_descendants(session, row):
                revoked.revoked_at = now
                append_audit(
                    session,
                    caller,
                    AuditAction.TOKEN_REVOKED,
                    subject=revoked.id,
                    before={"user": revoked.user, "label": revoked.label},
                    now=now,
                )
            return row

    def find_by_secret(self, token: UserToken) -> Caller | None:
        """Return whose token this is; None if it is unknown.

        Raises:
            Unauthorized: it was revoked or has expired, or its user is disabled.
        """
        return self._find(token.id, lambda row: token_matches(digest_of(token.secret), row.digest))

    def find_by_id(self, token_id: str) -> Caller | None:
        """Return whose token has this ID, for a caller who has shown its secret before; None if
        there is none.

        Raises:
            Unauthorized: it was revoked or has expired, or its user is disabled.
        """
        return self._find(token_id, lambda _: True)

    def note_use(self, token_id: str) -> None:
        """Store that a token is in use; nothing happens if the database cannot be written."""
        with suppress(SQLAlchemyError, ApiError), self._database.write() as session:
            row = session.get(TokenRow, token_id)
            if row is not None:
                row.used_at = self._clock()

    def _find(self, token_id: str, is_right: Callable[[TokenRow], bool]) -> Caller | None:
        with self._database.read() as session:
            row = session.get(TokenRow, token_id)
            user = None if row is None else session.get(UserRow, row.user)
        if row is None or user is None or not is_right(row):
            return None
        _check_accepted(row, user, self._clock())
        return Caller(
            user=user.name,
            scopes=_read_scopes(row.scopes) & scopes_of_role(user.role),
            token_id=row.id,
            expires_at=row.expires_at,
        )


def _get_user(session: Session, name: str) -> UserRow:
    row = session.get(UserRow, name, with_for_update=True)
    if row is None:
        raise NotFound(
            f"there is no user {name!r}; 'accordion user list' (GET /api/v1/users) lists all"
        )
    return row


def _limit_scopes(caller: Caller, user: UserRow, request: RequestedToken) -> frozenset[Scope]:
    """Return the scopes of a new token.

    Raises:
        Forbidden: it would allow more than the user's role, or be for another user; or, for the
            caller's own user, allow more or last longer than the caller's token.
    """
    is_own = user.name == caller.user
    if not is_own and Scope.ADMIN not in caller.scopes:
        raise Forbidden(
            f"a token for user {user.name!r} needs the scope {Scope.ADMIN.value!r}; create one for"
            f" {caller.user!r}"
        )
    allowed = scopes_of_role(user.role) & (caller.scopes if is_own else frozenset(Scope))
    scopes = allowed if request.scopes is None else frozenset(request.scopes)
    if not scopes <= allowed:
        raise Forbidden(
            f"a token of user {user.name!r} ({user.role}) cannot have"
            f" {', '.join(sorted(scopes - allowed))}; allowed are {', '.join(sorted(allowed))}"
        )
    limit = caller.expires_at if is_own else None
    if limit is not None and (request.expires_at is None or request.expires_at > limit):
        raise Forbidden(
            "the new token would be valid for longer than the one that creates it; give an earlier"
            " expiry, or use a token that is valid for longer"
        )
    return scopes


def _check_accepted(row: TokenRow, user: UserRow, now: float) -> None:
    """Check a token whose caller is known to hold it.

    Raises:
        Unauthorized: it was revoked or has expired, or its user is disabled.
    """
    if user.disabled_at is not None:
        raise Unauthorized(f"user {user.name!r} is disabled; ask an admin")
    if row.revoked_at is not None:
        raise Unauthorized(f"token {row.id} was revoked; use another one")
    if row.expires_at is not None and now >= row.expires_at:
        raise Unauthorized(f"token {row.id} expired at {_format_time(row.expires_at)}; get another")


def _check_still_accepted(session: Session, caller: Caller) -> None:
    """Check the caller's token again, and lock it until the end of the transaction.

    Raises:
        Unauthorized: it was revoked since the request began.
    """
    if caller.token_id:
        row = session.get(TokenRow, caller.token_id, with_for_update=True)
        if row is None or row.revoked_at is not None:
            raise Unauthorized(f"token {caller.token_id} was revoked; use another one")


def _with_descendants(session: Session, token: TokenRow) -> list[TokenRow]:
    """Return those of a token, the tokens created with it, theirs, and so on that are accepted."""
    found, children = [], [token]
    while children:
        found += children
        made = select(TokenRow).where(TokenRow.made_by.in_([row.id for row in children]))
        children = list(session.scalars(made.with_for_update()))
    return [row for row in found if row.revoked_at is None]


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _read_scopes(stored: Sequence[str]) -> frozenset[Scope]:
    """Return the scopes that this version knows; tokens with `admin` may be older than `audit`."""
    scopes = frozenset(scope for scope in Scope if scope.value in stored)
    return scopes | {Scope.AUDIT} if Scope.ADMIN in scopes else scopes
