"""Pure checks of one request: its host, then its origin; a failed check raises an `ApiError`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from accordion_service.errors import Forbidden, SettingsError
from accordion_service.settings.settings import Settings

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PROBES = frozenset({"/livez", "/readyz"})
"""Paths that load balancers and kubelets ask for by the address of a container."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of our own pages and of addresses typed by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Settings of the guards."""

    token: str | None
    metrics_token: str | None = None
    """Accepted for `/metrics` beside the admin token and the tokens of users."""
    cookie: str = ""
    """Name of the session cookie."""
    hosts: frozenset[str] | None
    """Names allowed in the `Host` header, without port; None allows any."""


def access_of(settings: Settings) -> Access:
    """Build the guards' settings.

    Raises:
        SettingsError: the service would be open to other users, or the token is unusable.
    """
    token, scrape = settings.token(), settings.scrape_token()
    if token is None:
        _refuse_open_service(settings)
    # The home directory's token is for users of this machine: accept loopback names only.
    is_local = settings.admin_token_file == settings.home_token and is_loopback(settings.host)
    named = {host.lower() for host in settings.allowed_hosts} | _host_of_url(settings.url)
    if token is not None and not named and not is_local:
        return Access(token=token, metrics_token=scrape, hosts=None)
    return Access(token=token, metrics_token=scrape, hosts=_LOOPBACK_NAMES | named)


def _host_of_url(url: str) -> frozenset[str]:
    """Return the host of the service's URL, as the `Host` header has it; none if there is no URL.

    Raises:
        SettingsError: the URL has no host.
    """
    if not url:
        return frozenset()
    netloc = _host_of(url)
    name = _without_port(netloc.rpartition("@")[2]) if netloc else ""
    if not name:
        raise SettingsError(
            f"ACCORDION_URL is {url!r}, which has no host; give a URL such as"
            " https://accordion.example.com"
        )
    return frozenset({name})


def _refuse_open_service(settings: Settings) -> None:
    if not is_loopback(settings.host):
        raise SettingsError(
            f"ACCORDION_HOST is {settings.host}, which other machines can reach, and there is no"
            " token; set ACCORDION_ADMIN_TOKEN_FILE (or ACCORDION_ADMIN_TOKEN), or bind 127.0.0.1"
        )
    if not settings.no_auth:
        raise SettingsError(
            "there is no token, so every user of this machine could run code as you; set"
            " ACCORDION_ADMIN_TOKEN_FILE (or ACCORDION_ADMIN_TOKEN), or accept that with --no-auth"
            " (ACCORDION_NO_AUTH=1)"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost counts as
    reachable.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_host(access: Access, path: str, headers: Mapping[str, str]) -> None:
    """Check the `Host` header: prevents DNS rebinding by pages of other hosts.

    Raises:
        Forbidden: the `Host` header holds another name.
    """
    if path in PROBES:
        return
    name = _without_port(headers.get("host", ""))
    if access.hosts is not None and name not in access.hosts:
        raise Forbidden(
            f"host {name!r} is not served here; known are {', '.join(sorted(access.hosts))}; "
            "add it to ACCORDION_ALLOWED_HOSTS"
        )


def check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Check the origin of writes: only the service's own pages, or programs that send no origin,
    may write.

    Raises:
        Forbidden: the request comes from another site.
    """
    if method in _SAFE_METHODS:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    foreign = origin is not None and _host_of(origin) != headers.get("host", "").lower()
    if foreign or (site is not None and site not in _OWN_SITE):
        raise Forbidden(
            f"{method} from {origin or site!r} is refused; only this service's own pages may write"
        )


def _host_of(origin: str) -> str | None:
    """Parse host and port; None if it is not an address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _without_port(host: str) -> str:
    host = host.lower()
    if host.startswith("["):
        name, bracket, rest = host.partition("]")
        return name + bracket if not rest or rest.startswith(":") else host
    return host.partition(":")[0]
