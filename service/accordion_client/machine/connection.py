"""Find the address of the service and its token.

    from accordion_client import connect

    with connect() as client:
        client.submit({"task": {"name": "digits-mlp"}})

By default this is the service of a profile (`profiles.py`), or the one that `accordion up` runs on
this home directory (`ACCORDION_HOME`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from accordion_client import AsyncClient, Client, RetryBudget, Waiter
from accordion_client.machine.profiles import load_client_settings
from accordion_client.machine.saved_logins import SavedLogins
from accordion_service.access.guards import is_loopback
from accordion_service.errors import SettingsError
from accordion_service.settings.home import Home, Running
from accordion_service.settings.settings import Settings


def connect(
    url: str = "", *, waiter: Waiter | None = None, retries: RetryBudget | None = None
) -> Client:
    """Create a client of the service at `url`; by default the one named by the settings or the
    home.

    Raises:
        SettingsError: a setting is wrong, or the token's file cannot be read.
    """
    address, token, limits = _find_service(url)
    return Client(address, token, waiter=waiter, retries=retries or limits)


def connect_async(
    url: str = "", *, waiter: Waiter | None = None, retries: RetryBudget | None = None
) -> AsyncClient:
    """Create an asynchronous client of the service at `url`; by default the one named by the
    settings or the home.

    Raises:
        SettingsError: a setting is wrong, or the token's file cannot be read.
    """
    address, token, limits = _find_service(url)
    return AsyncClient(address, token, waiter=waiter, retries=retries or limits)


def _find_service(url: str) -> tuple[str, str | None, RetryBudget]:
    """Find the address and the token of a service, and how long to wait for it."""
    settings = load_client_settings(url)
    address = service_url(settings, url)
    limits = RetryBudget(timeout_s=settings.request_timeout_s, total_s=settings.request_total_s)
    return address, service_token(settings, address), limits


def service_url(settings: Settings, url: str = "") -> str:
    """Address of the service: the given or configured one, the one running on this home, or the
    default.
    """
    if url or settings.url:
        return url or settings.url
    running = Home(settings.home).running()
    return running.url if running else f"http://{settings.host}:{settings.port}"


def service_token(settings: Settings, address: str) -> str | None:
    """Token for an address: the user's or the admin token that the settings name, else that of a
    login at this address, else this home's token if its own service is addressed.

    Raises:
        SettingsError: the token's file cannot be read.
    """
    token = settings.client_token() or settings.token()
    if token is None:
        token = SavedLogins(settings.home).find(address, time.time())
    running = None if token is not None else Home(settings.home).running()
    if running is None or not running.token_file or not is_same_service(address, running):
        return token
    file = Path(running.token_file)
    if not os.access(file, os.R_OK):
        raise SettingsError(
            f"{file}, the token of the service of this home, cannot be read; set ACCORDION_TOKEN,"
            " or restart the service if the file is gone"
        )
    return settings.model_copy(update={"admin_token_file": file}).token()


def is_same_service(address: str, running: Running) -> bool:
    """Return whether an address is that of the service that runs on a home."""
    try:
        asked, ours = urlsplit(address), urlsplit(running.url)
        return (
            asked.scheme == ours.scheme and asked.port == ours.port and _is_same_host(asked, ours)
        )
    except ValueError:
        return False


def _is_same_host(asked: SplitResult, ours: SplitResult) -> bool:
    one, other = asked.hostname or "", ours.hostname or ""
    return one == other or (one in {"localhost", "127.0.0.1"} and is_loopback(other))
