"""Python clients of the service: one method per route; responses are records of
`accordion_service.schemas.jobs`.

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit({"task": {"name": "digits-mlp"}})
        for event in client.events(job.id):
            ...

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.submit({"task": {"name": "digits-mlp"}})
        async for event in client.events(job.id):
            ...

On the machine that runs `accordion up`, `accordion_client.connect()` and `connect_async()` find the
address and the token.

Every method may raise Unreachable, ServiceFailed and Refused (see errors.py). Requests that may
arrive twice are sent again within the `RetryBudget` if they fail.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Self

import httpx2

from accordion_client.sdk.accounts import AccountRequests
from accordion_client.sdk.blocking import BlockingTransport, run_coroutine
from accordion_client.sdk.cluster import ClusterRequests
from accordion_client.sdk.history import HistoryRequests
from accordion_client.sdk.jobs import JobRequests
from accordion_client.sdk.request_sender import IDLE_CONNECTION_S, LIMITS, choose_certificates
from accordion_client.sdk.retries import RetryBudget
from accordion_client.sdk.shared_methods import Awaiting, Blocking
from accordion_client.sdk.stream import Waiter
from accordion_client.sdk.webhooks import WebhookRequests

__all__ = ["IDLE_CONNECTION_S", "AsyncClient", "Client"]


class _Requests(JobRequests, HistoryRequests, ClusterRequests, AccountRequests, WebhookRequests):
    """Methods of both clients."""


class Client(_Requests, Blocking):
    """Client of one service. `transport` replaces the network, for example by an application in the
    same process.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        waiter: Waiter | None = None,
        retries: RetryBudget | None = None,
    ) -> None:
        waiter = waiter or Waiter()
        super().__init__(
            url,
            token,
            transport=BlockingTransport(
                transport
                or httpx2.HTTPTransport(
                    verify=choose_certificates(url), limits=LIMITS, trust_env=False
                )
            ),
            waiter=replace(waiter, sleep=waiter.sleep or time.sleep),
            retries=retries,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        run_coroutine(self._http.aclose())


class AsyncClient(_Requests, Awaiting):
    """Client of one service for programs with an event loop of asyncio. `transport` replaces the
    network, for example by an application in the same process.

    Each method of `Client` is a coroutine here, and each iterator an asynchronous generator. Close
    a generator that you leave before its end: `async with aclosing(client.events(job_id))`.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
