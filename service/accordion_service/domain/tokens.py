"""Secrets of callers: the admin token of the settings, the tokens of users and one-time login
links.

Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

DAY_S = 86_400.0
"""Seconds of a day, the unit in which users give lifetimes of tokens."""
TOKEN_ID = r"^[a-z0-9]+$"  # noqa: S105 - a pattern
"""IDs of tokens."""
_PREFIX = "acc"
"""First part of a user's token, by which secret scanners recognize it."""


class UserToken(NamedTuple):
    """Parts of a user's token."""

    id: str
    """Public part, under which the token is listed and revoked."""
    secret: str
    """Only its digest is stored."""

    def __str__(self) -> str:
        return f"{_PREFIX}_{self.id}_{self.secret}"


def new_token() -> UserToken:
    """Create a token with 256 random bits."""
    return UserToken(id=secrets.token_hex(6), secret=secrets.token_urlsafe(32))


def parse_token(text: str) -> UserToken | None:
    """Return the parts of a user's token; None if the text has another form."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    if prefix != _PREFIX or not (token_id.isascii() and token_id.isalnum() and secret):
        return None
    return UserToken(id=token_id, secret=secret)


def token_matches(given: str, token: str) -> bool:
    """Compare a secret with the token."""
    return hmac.compare_digest(given.encode(), token.encode())


def new_link_secret() -> str:
    """Create the secret of a one-time link; only its digest is stored."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Digest under which a link's secret or a session cookie is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()
