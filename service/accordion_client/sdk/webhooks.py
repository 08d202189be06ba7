"""Requests for webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_method

if TYPE_CHECKING:
    from accordion_service.schemas.webhooks import (
        DeliveryPage,
        DeliveryView,
        NewWebhook,
        WebhookList,
        WebhookView,
    )


class WebhookRequests(RequestSender):
    """Part of `Client` and `AsyncClient`."""

    @shared_method
    async def webhooks(self) -> WebhookList:
        """Get your webhooks, without their secrets."""
        from accordion_service.schemas.webhooks import WebhookList

        return await self._request(WebhookList, "GET", "/webhooks")

    @shared_method
    async def add_webhook(
        self,
        url: str,
        *,
        name: str | None = None,
        statuses: Sequence[str] | None = None,
        label: str | None = None,
        all_jobs: bool = False,
    ) -> NewWebhook:
        """Add a webhook. Only this result contains the secret of its signatures.

        Args:
            url: URL of the receiver.
            name: name of the webhook; None for the host of the URL.
            statuses: statuses that are sent; None for those of jobs that have ended.
            label: only jobs with this label, as `key:value`.
            all_jobs: jobs of all users, not only yours.
        """
        from accordion_service.schemas.webhooks import NewWebhook

        body: dict[str, Any] = {"url": url, "name": name, "label": label, "all_jobs": all_jobs}
        if statuses is not None:
            body["statuses"] = list(statuses)
        return await self._request(NewWebhook, "POST", "/webhooks", json=body)

    @shared_method
    async def rotate_webhook_secret(self, name: str) -> NewWebhook:
        """Give a webhook a new secret, which only this result contains. For 24 hours, messages are
        signed with the old one, too.
        """
        from accordion_service.schemas.webhooks import NewWebhook

        return await self._request(NewWebhook, "POST", f"{_path_of(name)}/secret")

    @shared_method
    async def remove_webhook(self, name: str) -> WebhookView:
        """Remove a webhook with its deliveries, and return it."""
        from accordion_service.schemas.webhooks import WebhookView

        return await self._request(WebhookView, "DELETE", _path_of(name))

    @shared_method
    async def test_webhook(self, name: str) -> DeliveryView:
        """Send a test message to a webhook."""
        from accordion_service.schemas.webhooks import DeliveryView

        return await self._request(DeliveryView, "POST", f"{_path_of(name)}/test")

    @shared_method
    async def deliveries(
        self, name: str, *, state: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> DeliveryPage:
        """Get one page of the deliveries of a webhook, newest first."""
        from accordion_service.schemas.webhooks import DeliveryPage

        asked = {"state": state, "limit": limit, "cursor": cursor}
        params = {key: value for key, value in asked.items() if value is not None}
        return await self._request(
            DeliveryPage, "GET", f"{_path_of(name)}/deliveries", params=params
        )

    @shared_method
    async def send_delivery(self, name: str, delivery_id: str) -> DeliveryView:
        """Send a delivery of a webhook again, with the same ID and body."""
        from accordion_service.schemas.webhooks import DeliveryView

        path = f"{_path_of(name)}/deliveries/{quote(delivery_id, safe='')}/send"
        return await self._request(DeliveryView, "POST", path)


def _path_of(name: str) -> str:
    return f"/webhooks/{quote(name, safe='')}"
