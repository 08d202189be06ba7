"""Request and response models of users, tokens and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from accordion_service.domain.access import USER_NAME, Role, Scope
from accordion_service.schemas.jobs import PLAIN, Answer, Request

_ScopeName = Annotated[Scope, Field(strict=False)]
_RoleName = Annotated[Role, Field(strict=False)]


class CallerView(Answer):
    """Who makes the request, and what the token allows."""

    user: str
    """Name of the user."""
    scopes: list[Scope]
    """Scopes of the token, as far as the user's role allows them."""
    token_id: str
    """ID of the token; empty for the admin token of the settings, and without authentication."""
    expires_at: datetime | None
    """When the token expires; null if it does not."""


class UserRequest(Request):
    """A new user, or an account for programs such as CI."""

    name: str = Field(max_length=63, pattern=USER_NAME)
    """Name, in lower case; it cannot be changed later."""
    role: _RoleName = Role.EDITOR
    """`viewer`: sees all jobs. `editor` (default): submits jobs, and sees and changes its own.
    `operator`: sees and changes all jobs, and reads the metrics. `admin`: manages users as well.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "ada"}, {"name": "ci", "role": "editor"}]}
    )


class UserChange(Request):
    """Changes of a user; what is left out stays as it is."""

    role: _RoleName | None = None
    """New role. It applies to the user's tokens at once. Default: null, no change."""
    disabled: bool | None = None
    """True refuses all tokens of the user, false accepts them again. Default: null, no change."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"role": "operator"}, {"disabled": True}]}
    )


class UserView(Answer):
    """One user."""

    name: str
    """Name of the user."""
    role: Role
    """Role, which limits the scopes of the user's tokens."""
    created_at: datetime
    """When the user was added."""
    disabled_at: datetime | None
    """When the user was disabled; null while enabled."""
    issuer: str | None = None
    """OpenID Connect provider through which the user logs in; null for users that were added here.
    """


class UserList(Answer):
    """All users, by name."""

    items: list[UserView]
    """The users."""


class TokenRequest(Request):
    """A new token. Yours allow no more than the token that creates them, and end no later."""

    label: str = Field(min_length=1, max_length=128, pattern=PLAIN)
    """What the token is for, such as `laptop` or `CI of repository x`."""
    scopes: list[_ScopeName] | None = Field(default=None, max_length=len(Scope))
    """What the token allows. Default: null, all that the user's role allows, and the token that
    creates it.
    """
    days: float | None = Field(default=90.0, gt=0, le=3650)
    """Days until it expires; null for a token that does not expire. Default: 90, or as long as the
    token that creates it, if that is yours too and ends earlier.
    """
    user: str | None = Field(default=None, max_length=63, pattern=USER_NAME)
    """User of the token; another one than your own needs the scope `admin`. Default: null, you."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"label": "laptop"},
                {"label": "CI", "scopes": ["read", "submit"], "days": 30, "user": "ci"},
            ]
        }
    )


class TokenView(Answer):
    """One token, without its secret."""

    id: str
    """ID of the token: the part after `acc_`."""
    user: str
    """User of the token."""
    label: str
    """What the token is for."""
    scopes: list[str]
    """What the token allows, as far as the user's role does."""
    created_at: datetime
    """When it was created."""
    expires_at: datetime | None
    """When it expires; null if it does not."""
    used_at: datetime | None
    """Newest use, to within a minute; null before the first."""
    revoked_at: datetime | None
    """When it was revoked; null while it is accepted."""


class NewToken(TokenView):
    """A new token; the only response that contains its text."""

    token: str
    """The token: send it as `Authorization: Bearer TOKEN`. It cannot be shown again."""


class TokenList(Answer):
    """Tokens, newest first, with revoked and expired ones."""

    items: list[TokenView]
    """The tokens."""


class AuditEntry(Answer):
    """One change that a user made."""

    id: int
    """Number of the entry; larger is newer."""
    time: datetime
    """When it was made."""
    user: str
    """User who made it."""
    token_id: str
    """Token of the request; empty for the admin token of the settings, and without
    authentication.
    """
    request_id: str
    """ID of the request, as in the service's log."""
    action: str
    """What was done, such as `job.cancelled`: one of those by which the list can be filtered, or
    one of another version of the service.
    """
    subject: str
    """ID of the job, plan or token, name of the user, secret, webhook or node, SHA-256 of the
    upload, or account of the quota, such as `user ada` or `label team:vision`.
    """
    subject_name: str | None = None
    """Name of the job, or label of the token; null if it is not known, and for other subjects."""
    before: dict[str, Any] | None
    """Values that the change replaced; null if it created the subject."""
    after: dict[str, Any] | None
    """Values from then on; null if it ended the subject."""


class AuditPage(Answer):
    """One page of the audit log, newest first."""

    items: list[AuditEntry]
    """Entries of this page."""
    next_cursor: int | None
    """Pass it as `cursor` to get the next page; null on the last page."""
