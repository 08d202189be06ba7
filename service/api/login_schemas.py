"""Request and response models of one-time login links."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.api.schemas import Answer, Request


class LoginLinkRequest(Request):
    """Request for a one-time login link."""

    next: str = Field(
        default="/", max_length=2000, pattern=r"^/([^/\\\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$"
    )
    """Path of the page to open after the login, such as `/jobs/ID`. Default: the list of jobs."""


class LoginLinkView(Answer):
    """A one-time login link."""

    path: str
    """Path of the link; append it to the address of the service."""
    expires_at: datetime | None
    """Time at which the link expires; null if the service runs without a token."""
