"""The admin token, and what stands for it in a browser: a one-time link, then a cookie.

Comparisons take the same time for every guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

COOKIE = "accordion_session"
SESSION_S = 12 * 3600.0
"""How long a login lasts."""


def token_matches(given: str, token: str) -> bool:
    """Whether somebody knows the token."""
    return hmac.compare_digest(given.encode(), token.encode())


def new_session(token: str, now: float) -> str:
    """Value of the cookie: its end, signed with the token; a new token ends all sessions."""
    expires = str(int(now + SESSION_S))
    return f"{expires}.{_sign(expires, token)}"


def session_valid(cookie: str, token: str, now: float) -> bool:
    """Whether the cookie was signed with this token and has not ended."""
    expires, _, signature = cookie.partition(".")
    signed = hmac.compare_digest(signature.encode(), _sign(expires, token).encode())
    return signed and expires.isascii() and expires.isdecimal() and now < int(expires)


def new_link_secret() -> str:
    """Secret of a one-time link; only its digest is stored."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored of a link's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _sign(expires: str, token: str) -> str:
    return hmac.new(token.encode(), f"session:{expires}".encode(), hashlib.sha256).hexdigest()
