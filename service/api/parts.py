"""What one api process is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service.request_times import RequestTimes
from service.settings import Settings
from service.store.engine import Database
from service.store.repository import Repository

Clock = Callable[[], float]
"""Seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one api process is made of."""

    settings: Settings
    database: Database
    repository: Repository
    clock: Clock
    request_times: RequestTimes
    draining: threading.Event = field(default_factory=threading.Event)
    """Set when the process is asked to go: writes are refused, streams end."""
