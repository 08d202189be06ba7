"""Which addresses a webhook may have: the rules that keep requests away from the service's own
network; pure.

A user chooses the URL, and the service sends the request. Without rules, a user could reach
whatever the service can reach: its loopback interface, the private network, the metadata of a
cloud.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import urlsplit

MAX_URL_LENGTH = 2000
"""Maximum length of a webhook's URL, in characters."""
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?")
_AUTHORITY_END = re.compile(r"^[^\]]*(\](:[0-9]*)?)?$")
"""Nothing but a port may follow the brackets around an IPv6 address."""
_GLOBAL_UNICAST = ip_network("2000::/3")
"""The only part of IPv6 in which addresses are routed globally."""
_NOT_PUBLIC: tuple[Network, ...] = (
    ip_network("192.0.0.0/24"),
    ip_network("192.88.99.0/24"),
    ip_network("168.63.129.16/32"),
    ip_network("3fff::/20"),
)
"""Networks that are no public ones although Python says so, all or in part: protocol assignments
(RFC 6890), 6to4 relays (RFC 7526), the platform address of Azure, which its machines reach, and
documentation (RFC 9637).
"""
_EXAMPLE = "https://example.com/hook"
_NETWORKS = "ACCORDION_WEBHOOK_NETWORKS"


class RefusedTarget(ValueError):
    """A URL or an address that webhooks may not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTarget:
    """The parts of a webhook's URL."""

    scheme: str
    host: str
    """Name or address, without the brackets of IPv6."""
    port: int
    path: str
    """Path and query, as they are requested."""

    @property
    def authority(self) -> str:
        """Value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    def url_at(self, address: Address) -> str:
        """Return the URL with this address in place of the name."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_target(url: str) -> WebhookTarget:
    """Parse a webhook's URL.

    Raises:
        RefusedTarget: it is malformed, or has a part that a webhook may not have.
    """
    _check_text(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RefusedTarget(f"the URL is malformed ({error}); give one like {_EXAMPLE}") from None
    if not _AUTHORITY_END.search(parts.netloc):
        raise RefusedTarget(f"the URL has text behind its address; give one like {_EXAMPLE}")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise RefusedTarget(f"the URL is not one of https; give one like {_EXAMPLE}")
    if "@" in parts.netloc:
        raise RefusedTarget(
            "the URL contains a user name or a password; leave them out, and let the receiver"
            " verify the signature of each request"
        )
    if port == 0:
        raise RefusedTarget("the URL has port 0; give one from 1 to 65535")
    return WebhookTarget(
        scheme=parts.scheme,
        host=_check_host(parts.hostname),
        port=port or _PORTS[parts.scheme],
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def choose_address(
    target: WebhookTarget, addresses: Iterable[Address], networks: Sequence[Network]
) -> Address:
    """Return the first of a host's addresses that a webhook may have.

    Args:
        target: URL of the webhook.
        addresses: addresses that its host resolves to, at least one.
        networks: networks that the operator allows besides global addresses.

    Raises:
        RefusedTarget: none is allowed.
    """
    found = [unwrap_address(address) for address in addresses]
    for address in found:
        if is_listed(address, networks) or (target.scheme == "https" and is_global(address)):
            return address
    first = found[0]
    if is_global(first):
        raise RefusedTarget(
            f"{target.host} ({first}) would get the status of jobs over http, without encryption;"
            f" use https, or ask an operator to add its network to {_NETWORKS}"
        )
    raise RefusedTarget(
        f"{target.host} has the address {first}, which is not a public one; use a public address,"
        f" or ask an operator to add its network to {_NETWORKS}"
    )


def is_global(address: Address) -> bool:
    """Return whether an address is a public one of a single host."""
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if is_listed(address, _NOT_PUBLIC):
        return False
    if isinstance(address, IPv4Address):
        return True
    # 6to4 and Teredo contain IPv4 addresses, which may be private ones.
    return address in _GLOBAL_UNICAST and address.sixtofour is None and address.teredo is None


def is_listed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether one of the networks contains an address."""
    return any(address in network for network in networks)


def unwrap_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped IPv6 address stands for; others unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _check_text(url: str) -> None:
    if len(url) > MAX_URL_LENGTH:
        raise RefusedTarget(
            f"the URL has {len(url)} characters, the limit is {MAX_URL_LENGTH}; give a shorter one"
        )
    if re.search(r"[^!-~]|\\", url):
        raise RefusedTarget(
            "the URL contains a space, a backslash or a character outside ASCII; encode it, as in"
            " %20, and write the name of the host as in xn--..."
        )
    if "#" in url:
        raise RefusedTarget("the URL has a part behind #, which is never sent; leave it out")


def _check_host(host: str) -> str:
    """Return the host of a URL in lower case.

    Raises:
        RefusedTarget: it is neither a name nor an address.
    """
    # A zone, as in fe80::1%eth0, names an interface of this machine.
    if ":" in host and "%" not in host:
        with suppress(ValueError):
            return str(ip_address(host))
    elif _HOST.fullmatch(host):
        return host.lower().removesuffix(".")
    raise RefusedTarget(
        f"{host!r} is neither the name of a host nor an address; give a URL like {_EXAMPLE}"
    )
