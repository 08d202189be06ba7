"""Who may do what: the scopes of tokens, the roles of users, and the caller of a request; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

USER_NAME = r"^[a-z0-9][a-z0-9._@-]{0,62}$"
"""Names of users; an e-mail address is one, because some providers have no other name."""
ADMIN_USER = "admin"
"""User of the admin token in the settings, and of a service without authentication."""


class ServiceUser(StrEnum):
    """User as whom the service itself acts, in the audit log for example."""

    METRICS = "metrics"
    """Reads metrics with the metrics token of the settings."""
    RETENTION = "retention"
    """Deletes old jobs."""
    WEBHOOK_DELIVERY = "webhook-delivery"
    """Disables webhooks."""


class Scope(StrEnum):
    """Permission that a token carries."""

    READ = "read"
    """See one's own jobs, guest runs, the cluster and the queue."""
    READ_ALL = "read:all"
    """See the jobs of all users."""
    SUBMIT = "submit"
    """Submit jobs, and resize, pause, resume, cancel, retry, archive and delete one's own."""
    OVERRIDE = "override"
    """Override the compression and the batch of one's own jobs, and of guest runs."""
    WRITE_ALL = "write:all"
    """Extend `submit` and `override` to the jobs of all users, and cordon and restore nodes."""
    TOKENS = "tokens"
    """Create tokens of one's own with at most the same scopes, and revoke one's own."""
    METRICS = "metrics"
    """Read `/metrics`, which names the jobs of all users."""
    AUDIT = "audit"
    """Read the audit log."""
    ADMIN = "admin"
    """Manage users, their tokens and quotas; includes `audit`."""


class Role(StrEnum):
    """Role of a user, which limits the scopes of the user's tokens."""

    VIEWER = "viewer"
    EDITOR = "editor"
    OPERATOR = "operator"
    ADMIN = "admin"


SCOPES_OF_ROLE: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.READ, Scope.READ_ALL, Scope.TOKENS}),
    Role.EDITOR: frozenset({Scope.READ, Scope.SUBMIT, Scope.OVERRIDE, Scope.TOKENS}),
    Role.OPERATOR: frozenset(Scope) - {Scope.ADMIN},
    Role.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request, and what that token allows."""

    user: str
    scopes: frozenset[Scope]
    token_id: str = ""
    """ID of the token, also in a browser session; empty for the admin token of the settings, and
    without authentication.
    """
    session_id: str = ""
    """ID of the browser session; empty if the request had the token itself."""
    expires_at: float | None = None
    """When the token expires, in seconds since 1970; None if it does not."""
    request_id: str = ""

    def may_see(self, owner: str | None) -> bool:
        """Whether jobs of this owner are visible; guest runs have no owner (None)."""
        return owner in {None, self.user} or Scope.READ_ALL in self.scopes

    def may_change(self, owner: str | None) -> bool:
        """Whether jobs of this owner may be changed, within the scope that the route requires."""
        return owner in {None, self.user} or Scope.WRITE_ALL in self.scopes


def scopes_of_role(role: str) -> frozenset[Scope]:
    """Return the scopes of a stored role; none if this version does not know it."""
    return SCOPES_OF_ROLE[Role(role)] if role in list(Role) else frozenset()


FULL_ACCESS = Caller(user=ADMIN_USER, scopes=frozenset(Scope))
"""Caller with the admin token of the settings, or of a service without authentication."""


def describe_missing_scope(caller: Caller, scope: Scope) -> str:
    """Return why the caller may not use a route, and which roles could."""
    roles = [role.value for role, scopes in SCOPES_OF_ROLE.items() if scope in scopes]
    held = ", ".join(sorted(caller.scopes)) or "none"
    return (
        f"this needs the scope {scope.value!r}, and the token of user {caller.user!r} has {held};"
        f" use a token with that scope, which the roles {', '.join(roles)} may have"
    )
