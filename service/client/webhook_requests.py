"""Requests of `Client` for webhooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from service.api.webhook_schemas import (
    DeliveryPage,
    DeliveryView,
    NewWebhook,
    WebhookList,
    WebhookView,
)

Answer = TypeVar("Answer", bound=BaseModel)


class WebhookRequests(ABC):
    """Part of `Client`."""

    @abstractmethod
    def _request(self, record: type[Answer], method: str, path: str, **more: Any) -> Answer:
        """Send a request, and parse its response."""

    def webhooks(self) -> WebhookList:
        """Get your webhooks, without their secrets."""
        return self._request(WebhookList, "GET", "/webhooks")

    def add_webhook(
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
        body: dict[str, Any] = {"url": url, "name": name, "label": label, "all_jobs": all_jobs}
        if statuses is not None:
            body["statuses"] = list(statuses)
        return self._request(NewWebhook, "POST", "/webhooks", json=body)

    def remove_webhook(self, name: str) -> WebhookView:
        """Remove a webhook with its deliveries, and return it."""
        return self._request(WebhookView, "DELETE", _path_of(name))

    def test_webhook(self, name: str) -> DeliveryView:
        """Send a test message to a webhook."""
        return self._request(DeliveryView, "POST", f"{_path_of(name)}/test")

    def deliveries(
        self, name: str, *, state: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> DeliveryPage:
        """Get one page of the deliveries of a webhook, newest first."""
        asked = {"state": state, "limit": limit, "cursor": cursor}
        params = {key: value for key, value in asked.items() if value is not None}
        return self._request(DeliveryPage, "GET", f"{_path_of(name)}/deliveries", params=params)

    def send_delivery(self, name: str, delivery_id: str) -> DeliveryView:
        """Send a delivery of a webhook again, with the same ID and body."""
        path = f"{_path_of(name)}/deliveries/{quote(delivery_id, safe='')}/send"
        return self._request(DeliveryView, "POST", path)


def _path_of(name: str) -> str:
    return f"/webhooks/{quote(name, safe='')}"
