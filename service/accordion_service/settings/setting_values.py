"""Types of settings whose values are checked or read from one text."""

from __future__ import annotations

import json
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

from accordion_service.domain.access import Role

_DRIVERS = frozenset({"sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"})
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _parse_networks(value: Any) -> Any:
    try:
        return tuple(ip_network(part) for part in _split(value))
    except ValueError as error:
        raise ValueError(f"{error}; give networks such as 10.1.2.3/32,fd00::5/128") from None


def _parse_roles(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(
            'it is no JSON object of groups and roles; give one such as {"ml-team": "editor"}'
        ) from None


def _check_database_url(url: str) -> str:
    if not url:
        return url
    # The command line rarely needs SQLAlchemy, which takes 0.1 s to load.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        name = make_url(url).drivername
    except (ArgumentError, ValueError):
        raise ValueError(
            "it is no database URL; give one such as sqlite:////path/file.db"
        ) from None
    if name not in _DRIVERS:
        raise ValueError(f"its scheme is {name}; known are sqlite and postgresql")
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def _check_index_urls(urls: SecretStr) -> SecretStr:
    for url in urls.get_secret_value().split():
        if not url.startswith(("https://", "http://", "file://")):
            raise ValueError("it is no URL; give one such as https://pypi.org/simple")
    return urls


def _check_node_failures(count: int) -> int:
    if count == 1:
        raise ValueError("one failure is that of one job; give at least 2, or 0 for never")
    return count


def _check_level(level: str) -> str:
    if level.upper() not in _LEVELS:
        raise ValueError(f"known are {', '.join(_LEVELS)}")
    return level.upper()


Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""Absolute path; `~` is the home directory of the user."""
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Words separated by commas."""
Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_parse_networks)
]
"""Networks separated by commas."""
RoleByGroup = Annotated[dict[str, Role], NoDecode, BeforeValidator(_parse_roles)]
"""JSON object."""
DatabaseUrl = Annotated[str, AfterValidator(_check_database_url)]
"""URL of SQLAlchemy with a driver that the service has; empty is allowed."""
IndexUrls = Annotated[SecretStr, AfterValidator(_check_index_urls)]
"""URLs of package indexes, separated by spaces."""
NodeFailures = Annotated[int, AfterValidator(_check_node_failures)]
"""Number of failures that is never reached by one job."""
LogLevel = Annotated[str, AfterValidator(_check_level)]
"""Level of messages, in capitals."""
