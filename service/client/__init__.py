"""Python clients of the service; of the server they import only the schemas of the API and the
table of job statuses.
"""

from service.client.client import AsyncClient, Client
from service.client.errors import (
    AmbiguousJob,
    APIStatusError,
    ClientError,
    NotFound,
    Refused,
    ServiceFailed,
    Unreachable,
)
from service.client.retries import RetryBudget
from service.client.stream import LogChunk, Waiter

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
]
