"""Session cookies of browsers, signed with the admin token of the settings.

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


def new_session(key: str, now: float, *, token_id: str) -> str:
    """Create a cookie: expiry, a random id and the ID of the token that logged in, signed with the
    admin token; a new admin token ends all sessions.

    Args:
        key: the admin token.
        now: seconds since 1970.
        token_id: empty for the admin token.
    """
    named = f"{int(now + SESSION_S)}-{secrets.token_hex(8)}-{token_id}"
    return f"{named}.{_sign_text(named, key)}"


def session_valid(cookie: str, key: str, now: float) -> bool:
    """Whether the cookie is signed with this key and not expired; logouts are in the database."""
    named, _, signature = cookie.partition(".")
    signed = hmac.compare_digest(signature.encode(), _sign_text(named, key).encode())
    # A session that ends later than a new one would was begun by a clock that was ahead.
    return signed and now < session_end(cookie) <= now + SESSION_S + _CLOCK_LEEWAY_S


def session_token(cookie: str) -> str:
    """Return the ID of the token that began a session; empty for the admin token."""
    _, _, rest = cookie.partition(".")[0].partition("-")
    return rest.partition("-")[2]


def session_id(cookie: str) -> str:
    """Return the random ID of a session."""
    _, _, rest = cookie.partition(".")[0].partition("-")
    return rest.partition("-")[0]


def session_end(cookie: str) -> float:
    """Expiry of a signed cookie, in seconds since 1970; 0 if it contains none."""
    expires = cookie.partition(".")[0].partition("-")[0]
    return float(expires) if expires.isascii() and expires.isdecimal() else 0.0


def _sign_text(named: str, key: str) -> str:
    return hmac.new(key.encode(), f"session:{named}".encode(), hashlib.sha256).hexdigest()
