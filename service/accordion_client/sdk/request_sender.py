"""Sends requests, again if they fail, and parses their responses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import httpx2
from pydantic import BaseModel, ValidationError

from accordion_client.sdk.answers import parse_base_url, raise_for_status, translate_errors
from accordion_client.sdk.errors import Unreachable
from accordion_client.sdk.retries import Outcome, RetryBudget, choose_delay, is_repeatable
from accordion_client.sdk.stream import Waiter
from accordion_service.schemas.history import DecisionPage, EpochPage
from accordion_service.schemas.jobs import JobPage

Answer = TypeVar("Answer", bound=BaseModel)
Page = TypeVar("Page", JobPage, EpochPage, DecisionPage)
DEFAULT_RETRIES = RetryBudget()
"""Limits of a client that is given none."""
IDLE_CONNECTION_S = 2.0
"""Seconds for which an idle connection is used again.

The service closes one after 5 s. A request that is sent in that moment would fail.
"""
LIMITS = httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S)


def choose_certificates(url: str) -> ssl.SSLContext | bool:
    """Return what to verify certificates with: those that httpx trusts, or none if the address has
    no TLS, because loading them takes 25 ms.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http:") else True


class RequestSender:
    """Connection to one service: what the shared methods of both clients use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        waiter: Waiter | None = None,
        retries: RetryBudget | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retries = retries or DEFAULT_RETRIES
        # Proxies from the environment would intercept requests to this machine.
        self._http = httpx2.AsyncClient(
            base_url=parse_base_url(self.url),
            headers=headers,
            transport=transport,
            verify=choose_certificates(url),
            timeout=self._retries.timeout_s,
            limits=LIMITS,
            trust_env=False,
        )
        self._waiter = waiter or Waiter()

    def limit_time(self, seconds: float) -> None:
        """Limit how long each later request may take; one that timed out is not sent again."""
        self._http.timeout = httpx2.Timeout(seconds)
        self._retries = replace(self._retries, timeout_s=seconds, total_s=seconds)

    async def _request(
        self,
        record: type[Answer],
        method: str,
        path: str,
        *,
        repeatable: bool = False,
        **more: Any,
    ) -> Answer:
        """Send a request, and parse its response.

        Args:
            record: type of the response.
            method: method of HTTP.
            path: path below the version of the API.
            repeatable: the request may arrive twice, although neither its method nor a key says so.
            more: parameters, headers and body.
        """
        with translate_errors(self.url):
            request = self._http.build_request(method, f"/api/v1{path}", **more)
            response = await self._send(request, repeatable=repeatable)
        await raise_for_status(response)
        return self._parse_response(record, response)

    async def _create(
        self, record: type[Answer], path: str, idempotency_key: str | None, **more: Any
    ) -> Answer:
        """Send a POST request with an idempotency key, so that it may arrive twice; None for a new
        key.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return await self._request(record, "POST", path, headers=headers, **more)

    async def _send(
        self, request: httpx2.Request, *, repeatable: bool = False, stream: bool = False
    ) -> httpx2.Response:
        """Send a request, and again within the budget if it fails; return the last response."""
        clock = self._waiter.clock
        started_at = clock()
        attempts = 0
        while True:
            outcome = await self._try_to_send(request, stream=stream)
            attempts += 1
            delay_s = choose_delay(
                self._retries,
                outcome,
                repeatable=repeatable or is_repeatable(request),
                attempts=attempts,
                elapsed_s=clock() - started_at,
            )
            if delay_s is None:
                break
            if isinstance(outcome, httpx2.Response):
                await outcome.aclose()
            await self._waiter.pause(delay_s)
        if isinstance(outcome, httpx2.TransportError):
            raise outcome
        return outcome

    async def _try_to_send(self, request: httpx2.Request, *, stream: bool) -> Outcome:
        try:
            return await self._http.send(request, stream=stream)
        except httpx2.TransportError as error:
            return error

    @asynccontextmanager
    async def _open(self, path: str, **more: Any) -> AsyncIterator[httpx2.Response]:
        """Open a response that is read in pieces. If it is lost in between, it is not repeated."""
        with translate_errors(self.url):
            request = self._http.build_request("GET", f"/api/v1{path}", **more)
            async with aclosing(await self._send(request, stream=True)) as response:
                await raise_for_status(response)
                yield response

    async def _read_pages(
        self, record: type[Page], path: str, params: dict[str, Any]
    ) -> AsyncGenerator[Page, None]:
        """Iterate over all pages of a list."""
        cursor: dict[str, str] = {}
        while True:
            page = await self._request(record, "GET", path, params=params | cursor)
            yield page
            if page.next_cursor is None:
                return
            cursor = {"cursor": page.next_cursor}

    def _parse_response(self, record: type[Answer], response: httpx2.Response) -> Answer:
        try:
            return record.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(
                f"the program at {self.url} is not an Accordion service of this version; is the"
                " address right?"
            ) from error
