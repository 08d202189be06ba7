"""Request and response schemas of one-time login links."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.api.schemas import Answer, Request


class LoginLinkRequest(Request):
    """Request for a one-time login link."""

    next: str = Field(
        default="/", max_length=2000, pattern=r"^/([^/\\\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$"
    )
    """Path of the page to open after the login."""


class LoginLinkView(Answer):
    """A one-time login link."""

    path: str
    """Append it to the service's address."""
    expires_at: datetime | None
    """Null if the service runs without a token."""
