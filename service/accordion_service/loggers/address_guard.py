"""Keeps a thread's connections within the addresses that users may have the service contact.

MLflow's client resolves names by itself, so a name that is checked first could have another address
when it is used. Here the lookup of the connection itself is checked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any

from accordion_service.domain.webhooks.targets import (
    Network,
    RefusedTarget,
    WebhookTarget,
    choose_address,
    parse_target,
    unwrap_address,
)

_target: ContextVar[WebhookTarget | None] = ContextVar("target", default=None)
"""What this thread may connect to; None for no limits."""


class AddressGuard:
    """Limits connections that are opened in its blocks; all others are as before.

    Args:
        networks: networks that are allowed besides public addresses.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        self._resolve: Callable[..., list[Any]] = socket.getaddrinfo

    def install(self) -> None:
        """Check the lookups of this process from now on."""
        socket.getaddrinfo = self._look_up

    @contextmanager
    def limit(self, url: str) -> Iterator[None]:
        """Let this thread connect to the host of a URL only, and at an allowed address.

        Raises:
            RefusedTarget: the URL is malformed. In the block, lookups raise it for an address that
                is not allowed.
        """
        token = _target.set(parse_target(url))
        try:
            yield
        finally:
            _target.reset(token)

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        found = self._resolve(host, port, *args, **kwargs)
        target = _target.get()
        if target is None:
            return found
        if str(host).lower().removesuffix(".") != target.host:
            raise RefusedTarget(
                f"{host} is not the host of the URL, {target.host}; give the URL that it leads to"
            )
        addresses = [unwrap_address(ip_address(row[4][0].partition("%")[0])) for row in found]
        chosen = choose_address(target, addresses, self._networks)
        return [row for row, address in zip(found, addresses, strict=True) if address == chosen]


__all__ = ["AddressGuard"]
