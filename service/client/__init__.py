"""Python client of the service; of the server it imports only the schemas of the API and the table
of job statuses.
"""

from service.client.client import Client
from service.client.errors import (
    AmbiguousJob,
    APIStatusError,
    ClientError,
    NotFound,
    Refused,
    ServiceFailed,
    Unreachable,
)
from service.client.stream import LogChunk, Waiter

__all__ = [
    "APIStatusError",
    "AmbiguousJob",
    "Client",
    "ClientError",
    "LogChunk",
    "NotFound",
    "Refused",
    "ServiceFailed",
    "Unreachable",
    "Waiter",
]
