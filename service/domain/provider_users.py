"""What the claims of an OpenID Connect provider say about a user: name and role; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.access import USER_NAME, Role
from service.errors import Forbidden

MAX_SUBJECT_LENGTH = 255
"""Maximum number of characters of a subject (OpenID Connect Core 1.0, section 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUser:
    """A user as the provider knows it."""

    issuer: str
    subject: str
    """ID at the provider, which never changes and is never given to another user."""
    name: str
    """Name here at the first login."""
    role: Role


def choose_role(
    groups: Any, roles: Mapping[str, Role], default_role: Role | None, *, claim: str
) -> Role:
    """Return the highest role of a user's groups.

    Args:
        groups: value of the claim: a text, a list of texts, or None if there is none.
        roles: role of each group.
        default_role: role of users in none of these groups; None refuses them.
        claim: name of the claim, for the message.

    Raises:
        Forbidden: no group has a role, and there is no default.
    """
    names = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    found = {roles[name] for name in names if isinstance(name, str) and name in roles}
    for role in reversed(Role):
        if role in found:
            return role
    if default_role is None:
        raise Forbidden(
            f"you are in no group that may use this service (claim {claim!r}); ask an admin to add"
            " you to one at the provider, or to set ACCORDION_OIDC_ROLES"
        )
    return default_role


def choose_name(claims: Mapping[str, Any], claim: str) -> str:
    """Return the user name in a claim, in lower case.

    Raises:
        Forbidden: there is none, it is no user name, or the provider has not verified it.
    """
    value = claims.get(claim)
    if not isinstance(value, str):
        raise Forbidden(
            f"the provider gives no text as {claim!r}, which names the user; ask an admin to set"
            " ACCORDION_OIDC_USER_CLAIM to another claim, or ACCORDION_OIDC_SCOPES"
        )
    if claim == "email" and claims.get("email_verified") is False:
        raise Forbidden(f"the provider has not verified the address {value!r}; verify it there")
    name = value.lower()
    if not re.fullmatch(USER_NAME, name):
        raise Forbidden(
            f"{value[:80]!r} (claim {claim!r}) is not a user name, which has up to 63 letters,"
            " digits and ._@-; ask an admin to set ACCORDION_OIDC_USER_CLAIM to another claim"
        )
    return name
