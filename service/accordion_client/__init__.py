"""The client of the service: `sdk` (Python), `commands` (the command line) and `machine` (a service
on this machine: start it, stop it, find it). The SDK needs neither torch nor Ray nor a database.

    from accordion_client import connect

    with connect() as client:
        client.submit({"task": {"name": "digits-mlp"}})

Names are imported at first use, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accordion_client.machine.connection import connect, connect_async
    from accordion_client.sdk.client import AsyncClient, Client
    from accordion_client.sdk.errors import (
        AmbiguousJob,
        APIStatusError,
        ClientError,
        NotFound,
        Refused,
        ServiceFailed,
        Unreachable,
    )
    from accordion_client.sdk.retries import RetryBudget
    from accordion_client.sdk.stream import LogChunk, Waiter

_HOMES = {
    "APIStatusError": "accordion_client.sdk.errors",
    "AmbiguousJob": "accordion_client.sdk.errors",
    "AsyncClient": "accordion_client.sdk.client",
    "Client": "accordion_client.sdk.client",
    "ClientError": "accordion_client.sdk.errors",
    "LogChunk": "accordion_client.sdk.stream",
    "NotFound": "accordion_client.sdk.errors",
    "Refused": "accordion_client.sdk.errors",
    "RetryBudget": "accordion_client.sdk.retries",
    "ServiceFailed": "accordion_client.sdk.errors",
    "Unreachable": "accordion_client.sdk.errors",
    "Waiter": "accordion_client.sdk.stream",
    "connect": "accordion_client.machine.connection",
    "connect_async": "accordion_client.machine.connection",
}

__all__ = [
    "APIStatusError",
    "AmbiguousJob",
    "AsyncClient",
    "Client",
    "ClientError",
    "LogChunk",
    "NotFound",
    "Refused",
    "RetryBudget",
    "ServiceFailed",
    "Unreachable",
    "Waiter",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accordion_client' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
