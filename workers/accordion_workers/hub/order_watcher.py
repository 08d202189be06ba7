"""Watches the desired state of a job: a thread keeps one long poll open to the Accordion actor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from accordion_workers.hub.actor_client import ActorClient, ActorTimeoutError
from accordion_workers.records.contract import DesiredState

WATCH_S = 20.0
"""Duration of one long poll."""
PAUSE_S = 0.5
"""Pause between polls while the actor does not answer."""
ANSWER_S = 5.0
"""Extra time for the answer of a poll."""

log = logging.getLogger(__name__)


class OrderWatcher:
    """Follows the desired state of one job. `start` before use, `close` at the end."""

    def __init__(self, job_id: str, client: ActorClient) -> None:
        self._job_id = job_id
        self._client = client
        self._orders = DesiredState()
        self._callback: Callable[[DesiredState], None] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    @property
    def orders(self) -> DesiredState:
        """Newest desired state received."""
        return self._orders

    def start(self) -> None:
        """Start the polling thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop; an open poll ends by itself."""
        self._closed.set()
        with self._lock:
            # The callback holds the whole run in a reference cycle through C++ objects.
            self._callback = None

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Call the function with the desired state known now, if any, and with every newer one."""
        with self._lock:
            self._callback = callback
            if self._orders.version:
                callback(self._orders)

    def fetch(self, timeout_s: float) -> DesiredState:
        """Return the desired state that the actor holds now, or the last known one if it does not
        answer.
        """
        with suppress(ActorTimeoutError):
            version = self._orders.version
            self._receive(self._client("watch", self._job_id, version, 0.0, timeout_s=timeout_s))
        return self._orders

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                version = self._orders.version
                self._receive(
                    self._client(
                        "watch", self._job_id, version, WATCH_S, timeout_s=WATCH_S + ANSWER_S
                    )
                )
            except ActorTimeoutError:
                self._closed.wait(PAUSE_S)
            except Exception:
                # The thread must survive to receive the next desired state, above all a cancel.
                log.exception(
                    "the desired state could not be received or applied; watching continues"
                )
                self._closed.wait(PAUSE_S)

    def _receive(self, orders: DesiredState) -> None:
        with self._lock:
            if orders.version <= self._orders.version:
                return
            self._orders = orders
            if self._callback is not None:
                self._callback(orders)
