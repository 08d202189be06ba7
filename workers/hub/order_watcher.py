"""Who listens to what people want of a job: one long poll, kept open to the Accordion actor by a
thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from workers.contract import DesiredState
from workers.hub.actor_client import ActorClient, ActorTimeoutError

WATCH_S = 20.0
"""How long one poll stays open."""
PAUSE_S = 0.5
"""Distance between polls while the actor is silent."""
ANSWER_S = 5.0
"""How much longer than the poll its answer may take."""

log = logging.getLogger(__name__)


class OrderWatcher:
    """Hears the orders of one job, each version once. `start` before use, `close` at the end."""

    def __init__(self, job_id: str, client: ActorClient) -> None:
        self._job_id = job_id
        self._client = client
        self._orders = DesiredState()
        self._callback: Callable[[DesiredState], None] | None = None
        self._taking = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    @property
    def orders(self) -> DesiredState:
        """The newest that were heard."""
        return self._orders

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop; an open poll ends by itself."""
        self._closed.set()
        with self._taking:
            # it holds the whole run, in a circle through objects of C++ that nobody collects.
            self._callback = None

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Call it with the orders known now, if any, and with all newer ones."""
        with self._taking:
            self._callback = callback
            if self._orders.version:
                callback(self._orders)

    def fetch(self, timeout_s: float) -> DesiredState:
        """Ask for what is held now, without waiting for news; what was heard last where the actor
        is silent.
        """
        with suppress(ActorTimeoutError):
            self._take(self._client("watch", self._job_id, -1, 0.0, timeout_s=timeout_s))
        return self._orders

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                version = self._orders.version
                self._take(
                    self._client(
                        "watch", self._job_id, version, WATCH_S, timeout_s=WATCH_S + ANSWER_S
                    )
                )
            except ActorTimeoutError:
                self._closed.wait(PAUSE_S)
            except Exception:
                # this thread must hear the next orders, a cancel above all.
                log.exception("orders could not be heard or followed; the next ones are")
                self._closed.wait(PAUSE_S)

    def _take(self, orders: DesiredState) -> None:
        with self._taking:
            if orders.version <= self._orders.version:
                return
            self._orders = orders
            if self._callback is not None:
                self._callback(orders)
