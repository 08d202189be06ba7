"""Connections of loggers: a thread reaches only what users may let the service contact."""

from __future__ import annotations

import socket
import threading
from ipaddress import ip_network
from typing import Any

import pytest

from accordion_service.domain.webhooks.targets import RefusedTarget
from accordion_service.loggers.address_guard import AddressGuard

HERE = ip_network("127.0.0.1/32")


@pytest.fixture(autouse=True)
def lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names have these addresses, and the guard is removed after each test."""
    known = {"inside.test": ["10.0.0.1"], "both.test": ["10.0.0.1", "93.184.215.14"]}

    def resolve(host: str, port: int, *_args: Any, **_kwargs: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in known.get(host, [host])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def guard(*networks: Any) -> AddressGuard:
    made = AddressGuard(networks)
    made.install()
    return made


def addresses(host: str) -> list[str]:
    return [row[4][0] for row in socket.getaddrinfo(host, 443)]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:5000", "https://10.0.0.1", "https://inside.test", "http://93.184.215.14"],
)
def test_an_address_that_is_not_allowed_is_not_connected_to(url: str) -> None:
    host = url.partition("://")[2].partition(":")[0]
    with guard().limit(url), pytest.raises(RefusedTarget, match="ACCORDION_WEBHOOK_NETWORKS"):
        addresses(host)


def test_of_several_addresses_only_an_allowed_one_is_used() -> None:
    with guard().limit("https://both.test/mlflow"):
        assert addresses("both.test") == ["93.184.215.14"]


def test_the_networks_of_the_operator_are_allowed() -> None:
    with guard(HERE).limit("http://127.0.0.1:5000"):
        assert addresses("127.0.0.1") == ["127.0.0.1"]


def test_another_host_is_not_connected_to() -> None:
    with guard(HERE).limit("http://127.0.0.1"), pytest.raises(RefusedTarget, match="not the host"):
        addresses("both.test")


def test_other_threads_and_what_follows_are_not_limited() -> None:
    found: list[list[str]] = []
    with guard().limit("https://both.test"):
        thread = threading.Thread(target=lambda: found.append(addresses("inside.test")))
        thread.start()
        thread.join()
    assert [*found, addresses("inside.test")] == [["10.0.0.1"], ["10.0.0.1"]]


def test_a_malformed_url_is_refused_before_anything_is_looked_up() -> None:
    with (
        pytest.raises(RefusedTarget, match="user name or a password"),
        guard().limit("https://ada:secret@both.test"),
    ):
        pass
