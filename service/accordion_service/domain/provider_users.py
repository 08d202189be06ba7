"""What the claims of an OpenID Connect provider say about a user: name and role; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accordion_service.domain.access import USER_NAME, Role
from accordion_service.errors import Forbidden

MAX_SUBJECT_LENGTH = 255
"""Maximum number of characters of a subject (OpenID Connect Core 1.0, section 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUser:
    """A user as the provider knows it."""

    issuer: str
    subject: str
    """ID at the provider, which never changes and is never given to another user."""
    name: str
    """Name here at the first login; empty if the claims give none."""
    name_problem: str = ""
    """Why the claims give no name."""
    role: Role | None
    """Role by the groups; None if the user may not use the service."""
    role_problem: str = ""
    """Why there is no role."""
    has_lost_access: bool = False
    """Whether the provider names the user's groups, and none of them has a role."""


def read_claims(
    claims: Mapping[str, Any],
    *,
    issuer: str,
    user_claim: str,
    groups_claim: str,
    roles: Mapping[str, Role],
    default_role: Role | None,
) -> ProviderUser:
    """Return the user in the claims of a valid ID token."""
    groups = claims.get(groups_claim)
    has_groups = isinstance(groups, str | list)
    role = choose_role(groups, roles, default_role)
    name, name_problem = "", ""
    try:
        name = choose_name(claims, user_claim)
    except Forbidden as error:  # a user who is known already needs none
        name_problem = str(error)
    return ProviderUser(
        issuer=issuer,
        subject=claims["sub"],
        name=name,
        name_problem=name_problem,
        role=role,
        role_problem=(
            "" if role is not None else _describe_missing_role(groups_claim, has_groups=has_groups)
        ),
        has_lost_access=role is None and has_groups,
    )


def _describe_missing_role(claim: str, *, has_groups: bool) -> str:
    if not has_groups:
        return (
            f"the provider does not name your groups (claim {claim!r}), so you have no role; ask an"
            " admin to add the claim at the provider, or to set ACCORDION_OIDC_GROUPS_CLAIM or"
            " ACCORDION_OIDC_SCOPES"
        )
    return (
        f"you are in no group that may use this service (claim {claim!r}); ask an admin to add you"
        " to one at the provider, or to set ACCORDION_OIDC_ROLES"
    )


def is_subject(value: object) -> bool:
    """Whether a claim can be a subject: 1 to 255 printable ASCII characters."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_SUBJECT_LENGTH
        and value.isascii()
        and value.isprintable()
    )


def choose_role(groups: Any, roles: Mapping[str, Role], default_role: Role | None) -> Role | None:
    """Return the highest role of a user's groups.

    Args:
        groups: value of the claim: a text, a list of texts, or None if there is none.
        roles: role of each group.
        default_role: role of users in none of these groups; None if they may not log in.
    """
    names = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    found = {roles[name] for name in names if isinstance(name, str) and name in roles}
    for role in reversed(Role):
        if role in found:
            return role
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
    # Some providers do not say whether an address is verified, and some say it with a text.
    if claim == "email" and claims.get("email_verified", True) not in (True, "true"):
        raise Forbidden(f"the provider has not verified the address {value!r}; verify it there")
    name = value.lower()
    # Other scripts have letters whose lower case is ASCII, such as the Kelvin sign.
    if not value.isascii() or not re.fullmatch(USER_NAME, name):
        raise Forbidden(
            f"{value[:80]!r} (claim {claim!r}) is not a user name, which has up to 63 letters,"
            " digits and ._@-; ask an admin to set ACCORDION_OIDC_USER_CLAIM to another claim"
        )
    return name
