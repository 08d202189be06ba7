"""What the api takes and gives about one-time login links."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.api.schemas import Answer, Request


class LoginLinkRequest(Request):
    """What a login link is for."""

    next: str = Field(default="/", max_length=2000, pattern=r"^/([^/\\\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$")
    """Path of the page that the link leads to."""


class LoginLinkView(Answer):
    """A link that signs a browser in."""

    path: str
    """Append it to the service's address."""
    expires_at: datetime | None
    """None where the service asks for no token."""
