"""Request and response models of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.domain.webhooks.targets import MAX_URL_LENGTH
from accordion_service.schemas.jobs import Answer, Request
from accordion_service.schemas.quotas import LABEL

WEBHOOK_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
_StatusName = Annotated[Status, Field(strict=False)]


class WebhookRequest(Request):
    """A new webhook: a URL that gets a signed request when one of your jobs changes its status."""

    url: str = Field(min_length=1, max_length=MAX_URL_LENGTH)
    """URL of the receiver, with https and a public address; networks in
    `ACCORDION_WEBHOOK_NETWORKS` may be private and use http.
    """
    name: str | None = Field(default=None, max_length=63, pattern=WEBHOOK_NAME)
    """Name, unique among yours, in lower case. Default: null, the host of the URL."""
    statuses: list[_StatusName] = Field(
        default=[Status.SUCCEEDED, Status.FAILED, Status.CANCELLED],
        min_length=1,
        max_length=len(Status),
    )
    """Statuses that are sent when a job reaches them. Default: those of jobs that have ended."""
    label: str | None = Field(default=None, max_length=127, pattern=LABEL)
    """Only jobs with this label, as `key:value`. Default: null, all."""
    all_jobs: bool = False
    """Jobs of all users and guest runs, which needs the scope `read:all`. Default: false, your own.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"url": "https://example.com/hooks/accordion"},
                {
                    "url": "https://example.com/hooks/accordion",
                    "name": "failures",
                    "statuses": ["FAILED"],
                    "label": "team:vision",
                },
            ]
        }
    )


class WebhookView(Answer):
    """One webhook, without its secret."""

    name: str
    """Name of the webhook."""
    url: str
    """URL of the receiver."""
    statuses: list[str]
    """Statuses that are sent when a job reaches them."""
    label: str | None
    """Label that a job must have, as `key:value`; null for all jobs."""
    all_jobs: bool
    """Whether it is for the jobs of all users; they are sent as long as your role allows you to see
    them.
    """
    created_at: datetime
    """When it was added."""
    disabled_reason: str | None
    """Why it gets no more requests; null while it does. A receiver disables its webhook by a
    response of 410.
    """
    pending: int
    """Number of deliveries that wait for an attempt."""
    dead: int
    """Number of deliveries that were given up and are kept."""
    previous_secret_until: datetime | None = None
    """Time until which messages are also signed with a replaced secret; null if none is valid."""


class NewWebhook(WebhookView):
    """A webhook with its new secret, which no other response contains."""

    secret: str
    """Secret by which the receiver verifies the signature of each request, as the Standard Webhooks
    specification says. It cannot be shown again.
    """


class WebhookList(Answer):
    """Your webhooks, by name."""

    items: list[WebhookView]
    """The webhooks."""


class DeliveryView(Answer):
    """One message to a webhook, and how far its delivery is."""

    id: str
    """ID of the message, which the header `webhook-id` has in every attempt."""
    type: str
    """`job.status`, or `webhook.test` for a message that was asked for."""
    job_id: str | None
    """ID of the job; null for a test."""
    status: str | None
    """Status that the job had reached; null for a test."""
    state: DeliveryState
    """`PENDING`: waits for an attempt. `DELIVERED`: the receiver responded with a status from 200
    to 299. `DEAD`: given up; it can be sent again.
    """
    attempts: int
    """Attempts so far, since it was last sent by hand."""
    response_status: int | None
    """HTTP status of the response to the newest attempt; null without one."""
    message: str
    """Why the newest attempt failed, or why the message was given up; empty otherwise, and during
    an attempt.
    """
    created_at: datetime
    """When the job changed its status."""
    next_attempt_at: datetime | None
    """When the next attempt is due; null if there is none."""
    done_at: datetime | None
    """When it was delivered or given up; null while it is pending."""


class DeliveryPage(Answer):
    """One page of the deliveries of a webhook, newest first."""

    items: list[DeliveryView]
    """Deliveries of this page."""
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""
