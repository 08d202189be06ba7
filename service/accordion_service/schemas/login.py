"""Request and response models of one-time login links, and of codes that log in a command line."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from accordion_service.schemas.jobs import PLAIN, Answer, Request

OWN_PATH = r"^/([^/\\\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$"
"""Path that no browser takes for another host: browsers drop tabs, and read `\\` as `/`."""
CHALLENGE = r"^[A-Za-z0-9_-]{43}$"


class LoginLinkRequest(Request):
    """Request for a one-time login link."""

    next: str = Field(default="/", max_length=2000, pattern=OWN_PATH)
    """Path of the page to open after the login, such as `/jobs/ID`. Default: the list of jobs."""


class LoginLinkView(Answer):
    """A one-time login link."""

    path: str
    """Path of the link; append it to the address of the service."""
    expires_at: datetime | None
    """Time at which the link expires; null if the service runs without a token."""


class LoginCodeRequest(Request):
    """Request for a code that logs in a command line."""

    challenge: str = Field(pattern=CHALLENGE)
    """SHA-256 of the verifier in base64url without padding: the challenge `S256` of RFC 7636."""
    label: str = Field(min_length=1, max_length=128, pattern=PLAIN)
    """What the token is for, such as `command line on laptop`."""


class LoginCodeView(Answer):
    """A code that logs in a command line."""

    code: str
    """The code; it works once, with the verifier."""
    expires_at: datetime
    """Time at which the code expires."""


class CodeExchange(Request):
    """A code that is exchanged for a token."""

    code: str = Field(max_length=128)
    """The code that the browser got."""
    verifier: str = Field(pattern=r"^[A-Za-z0-9._~-]{43,128}$")
    """Random text of the command line, whose digest is the challenge of the code."""
