"""Addresses that a webhook may have."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.webhooks.targets import (
    MAX_URL_LENGTH,
    RefusedTarget,
    choose_address,
    parse_target,
    unwrap_address,
)
from accordion_service.errors import SettingsError
from accordion_service.settings.settings import load_settings

PRIVATE = [
    *["0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1"],
    *["192.0.0.9", "192.88.99.1", "168.63.129.16", "172.31.255.255", "100.127.255.255"],
    *["192.0.2.1", "192.168.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"],
    *["::", "::1", "::7f00:1", "fe80::1", "fc00::1", "fec0::1", "ff0e::1", "2001:db8::1"],
    *["3fff::1", "3fff:fff::1", "fdff::1", "febf::1", "::ffff:169.254.169.254"],
    *["::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::"],
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
]
"""One address of each kind that is not a public one: unspecified, private, shared, loopback,
link-local, documentation, benchmarking, multicast, reserved, broadcast, IPv6 that contains IPv4.
"""
PUBLIC = [
    *["8.8.8.8", "11.0.0.1", "100.63.255.255", "100.128.0.1", "168.63.129.17", "172.15.255.255"],
    *["172.32.0.1", "192.0.1.1", "192.88.100.1", "192.167.255.255", "192.169.0.1", "223.0.0.1"],
    *["2606:4700::1", "::ffff:8.8.8.8"],
]
"""Public addresses, most of them beside a network that is not."""


@pytest.mark.parametrize("text", PRIVATE)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    target = parse_target("https://hooks.test/x")
    with pytest.raises(RefusedTarget, match="is not a public one; use a public address, or ask"):
        choose_address(target, [ip_address(text)], [])


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_chosen(text: str) -> None:
    target = parse_target("https://hooks.test/x")
    found = [ip_address("10.0.0.1"), ip_address(text)]
    assert choose_address(target, found, []) == unwrap_address(found[1])


def test_http_needs_a_network_of_the_settings() -> None:
    target, public = parse_target("http://hooks.test/x"), ip_address("8.8.8.8")
    with pytest.raises(RefusedTarget, match="without encryption; use https, or ask an operator"):
        choose_address(target, [public], [])
    assert choose_address(target, [public], [ip_network("8.8.8.0/24")]) == public


def test_a_network_of_the_settings_is_allowed_and_no_other() -> None:
    networks = load_settings(webhook_networks="10.0.0.0/8, fd00::/8").webhook_networks
    target = parse_target("http://hooks.test/x")
    for text in ("10.1.2.3", "fd00::1", "::ffff:10.1.2.3"):
        assert choose_address(target, [ip_address(text)], networks)
    with pytest.raises(RefusedTarget):
        choose_address(target, [ip_address("127.0.0.1")], networks)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "intranet", "10.0.0.0/40"])
def test_a_wrong_network_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=r"ACCORDION_WEBHOOK_NETWORKS is .*give networks such"):
        load_settings(webhook_networks=text)


@pytest.mark.parametrize(
    ("url", "authority", "requested"),
    [
        ("https://Hooks.test", "hooks.test", "https://8.8.8.8:443/"),
        ("https://hooks.test.:443/a?b=c", "hooks.test", "https://8.8.8.8:443/a?b=c"),
        ("http://hooks.test:8080?x", "hooks.test:8080", "http://8.8.8.8:8080/?x"),
        ("https://[2606:4700::0:1]:8443/", "[2606:4700::1]:8443", "https://8.8.8.8:8443/"),
    ],
)
def test_a_url_is_requested_at_its_address(url: str, authority: str, requested: str) -> None:
    target = parse_target(url)
    assert (target.authority, target.url_at(ip_address("8.8.8.8"))) == (authority, requested)
    assert target.url_at(ip_address("2606:4700::1")).startswith(f"{target.scheme}://[2606:4700::1]")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("hooks.test", "is not one of https"),
        ("file:///etc/passwd", "is not one of https"),
        ("https:///x", "is not one of https"),
        ("https://user@hooks.test", "a user name or a password"),
        ("https://hooks.test\\@8.8.8.8", "a backslash"),
        ("https://hooks.test/ä", "outside ASCII"),
        ("https://hooks.test/a b", "contains a space"),
        ("https://hooks.test/\n", "contains a space"),
        ("https://hooks.test/#x", "behind #"),
        ("https://hooks.test:0", "port 0"),
        ("https://hooks.test:65536", "malformed"),
        ("https://[::1", "malformed"),
        ("https://[::1]extra/", "text behind its address"),
        ("https://[::1]extra:443/", "text behind its address"),
        ("https://[fe80::1%25eth0]/", "neither the name of a host nor an address"),
        ("https://a$b/", "neither the name of a host nor an address"),
        ("https://h/" + "x" * MAX_URL_LENGTH, "the limit is 2000"),
    ],
)
def test_a_malformed_url_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(RefusedTarget, match=sentence):
        parse_target(url)


@given(st.text(alphabet=st.characters(max_codepoint=0x17F), max_size=40))
def test_a_url_is_refused_or_has_a_plain_host(rest: str) -> None:
    try:
        target = parse_target(f"https://{rest}")
    except RefusedTarget:
        return
    assert not set(target.host) & set("@/\\?# %[]")
