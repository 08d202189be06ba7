"""The service from Python; imports nothing of the server but `service.api.schemas`."""

from service.client.client import Client
from service.client.errors import (
    Answered,
    ClientError,
    Missing,
    NotOneJob,
    Refused,
    ServiceFailed,
    Unreachable,
)
from service.client.stream import LogChunk, Waiter

__all__ = [
    "Answered",
    "Client",
    "ClientError",
    "LogChunk",
    "Missing",
    "NotOneJob",
    "Refused",
    "ServiceFailed",
    "Unreachable",
    "Waiter",
]
