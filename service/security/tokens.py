"""The admin token, and its substitutes in a browser: a one-time link, then a session cookie.

Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

SESSION_S = 12 * 3600.0
"""How long a login lasts."""
_CLOCK_LEEWAY_S = 60.0
"""How far the clock may be set back without ending new sessions."""


def cookie_name(installation: str) -> str:
    """Name of the session cookie: browsers ignore ports, so services on one host name need
    different names.
    """
    return f"accordion_session_{installation}"


def token_matches(given: str, token: str) -> bool:
    """Compare a secret with the token."""
    return hmac.compare_digest(given.encode(), token.encode())


def new_session(token: str, now: float) -> str:
    """Create the cookie: expiry and a random id, signed with the token; a new token ends all
    sessions.
    """
    named = f"{int(now + SESSION_S)}-{secrets.token_hex(8)}"
    return f"{named}.{_sign_text(named, token)}"


def session_valid(cookie: str, token: str, now: float) -> bool:
    """Whether the cookie is signed with this token and not expired; logouts are in the database."""
    named, _, signature = cookie.partition(".")
    signed = hmac.compare_digest(signature.encode(), _sign_text(named, token).encode())
    # A session that ends later than a new one would was begun by a clock that was ahead.
    return signed and now < session_end(cookie) <= now + SESSION_S + _CLOCK_LEEWAY_S


def session_end(cookie: str) -> float:
    """Expiry of a signed cookie, in seconds since 1970; 0 if it contains none."""
    expires = cookie.partition(".")[0].partition("-")[0]
    return float(expires) if expires.isascii() and expires.isdecimal() else 0.0


def new_link_secret() -> str:
    """Create the secret of a one-time link; only its digest is stored."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Digest under which a link's secret or a session cookie is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _sign_text(named: str, token: str) -> str:
    return hmac.new(token.encode(), f"session:{named}".encode(), hashlib.sha256).hexdigest()
