"""Sends one request of a webhook: to a checked address, without redirects, within a time limit."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from functools import cached_property

import httpx2

from accordion_service.access.host_lookup import HostLookup, LookupFailed, look_up_host
from accordion_service.domain.webhooks.targets import (
    Address,
    Network,
    RefusedTarget,
    WebhookTarget,
    choose_address,
    parse_target,
)
from accordion_service.store.writes.delivery_queue import AttemptOutcome

TIMEOUT_S = 10.0
"""Seconds that resolving the name may take, and again the whole request until the first line and
the headers of its response.
"""
_HEADERS = {"content-type": "application/json", "user-agent": "accordion-webhooks"}


class WebhookSender:
    """Sends requests.

    Args:
        networks: networks in which receivers may be besides public addresses.
        look_up: resolves the names of hosts.
        tls: settings of TLS; None for the certificates that the machine trusts.
        timeout_s: limit of each of the two steps in seconds.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        *,
        look_up: HostLookup = look_up_host,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._networks = networks
        self._look_up = look_up
        self._given_tls = tls
        self._timeout_s = timeout_s

    def send(
        self, url: str, *, headers: Mapping[str, str], body: bytes, user: str
    ) -> AttemptOutcome:
        """Send a body as JSON for a user, and return the outcome.

        The name is resolved once, and the request goes to the address that was checked: a name
        server that gives another address the next time gains nothing.

        Raises:
            LookupPostponed: nothing was sent, because too many names are being resolved.
        """
        try:
            target = parse_target(url)
            found = self._look_up(target.host, self._timeout_s, user)
            address = choose_address(target, found, self._networks)
        except (RefusedTarget, LookupFailed) as error:
            return AttemptOutcome(message=str(error))
        try:
            status = asyncio.run(self._post(target, address, headers=headers, body=body))
        except (TimeoutError, httpx2.TimeoutException):
            return AttemptOutcome(
                message=f"no response within {self._timeout_s:g} s; respond before doing the work"
            )
        except (httpx2.ProtocolError, httpx2.DecodingError):
            # Its text contains bytes that the receiver chose.
            return AttemptOutcome(message="the response is not valid HTTP")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            return AttemptOutcome(message=f"the request failed ({reason})")
        return AttemptOutcome(response_status=status, message=_describe_status(status))

    async def _post(
        self, target: WebhookTarget, address: Address, *, headers: Mapping[str, str], body: bytes
    ) -> int:
        """Return the status of the response; its body is not read.

        A timeout of the client limits each read; the one around it limits them all together.
        """
        async with (
            asyncio.timeout(self._timeout_s),
            httpx2.AsyncClient(
                verify=self._tls, trust_env=False, timeout=self._timeout_s
            ) as client,
            client.stream(
                "POST",
                target.url_at(address),
                content=body,
                headers={**_HEADERS, **headers, "host": target.authority},
                # TLS verifies the certificate of the name, not of the address.
                extensions={"sni_hostname": target.host},
                follow_redirects=False,
            ) as response,
        ):
            return response.status_code

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Settings of TLS, read once: that takes longer than a request."""
        return self._given_tls or httpx2.create_ssl_context()


def _describe_status(status: int) -> str:
    """Return why a response is no success; empty if it is one."""
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return (
            f"the receiver responded with {status}: redirects are not followed; use the URL that it"
            " redirects to"
        )
    return f"the receiver responded with {status}, and only 200 to 299 count as delivered"


__all__ = ["TIMEOUT_S", "WebhookSender"]
