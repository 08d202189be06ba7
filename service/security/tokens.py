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
    """Value of the cookie: its end and a number of its own, signed with the token; a new token ends all sessions."""
    named = f"{int(now + SESSION_S)}-{secrets.token_hex(8)}"
    return f"{named}.{_sign(named, token)}"


def session_valid(cookie: str, token: str, now: float) -> bool:
    """Whether the cookie was signed with this token and its time is not over; a logout is kept in the database."""
    named, _, signature = cookie.partition(".")
    signed = hmac.compare_digest(signature.encode(), _sign(named, token).encode())
    return signed and now < session_end(cookie)


def session_end(cookie: str) -> float:
    """When a signed cookie ends, in seconds since 1970; 0 where it says nothing of that."""
    expires = cookie.partition(".")[0].partition("-")[0]
    return float(expires) if expires.isascii() and expires.isdecimal() else 0.0


def new_link_secret() -> str:
    """Secret of a one-time link; only its digest is stored."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored of a link's secret or a session's cookie."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _sign(named: str, token: str) -> str:
    return hmac.new(token.encode(), f"session:{named}".encode(), hashlib.sha256).hexdigest()
