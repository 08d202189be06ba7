"""Delivers the messages of webhooks, in threads of the scheduler."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic as wait_clock

import structlog

from accordion_service.access.host_lookup import LookupPostponed
from accordion_service.domain.webhooks.retries import MAX_ATTEMPTS, DeliveryState
from accordion_service.domain.webhooks.serving_order import WebhookTurns
from accordion_service.domain.webhooks.signatures import sign_message
from accordion_service.errors import SettingsError
from accordion_service.scheduler.turn_logs import log_failure
from accordion_service.scheduler.webhook_sender import WebhookSender
from accordion_service.settings.secret_box import (
    GIVE_KEY,
    SecretBox,
    WrongKeyError,
    open_secret_box,
)
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.writes.delivery_queue import (
    AttemptOutcome,
    ClaimedDelivery,
    DeliveryQueue,
    DueWebhook,
)
from accordion_service.store.writes.scheduler_counts import SchedulerCounts

INTERVAL_S = 1.0
"""Seconds between two looks for messages that are due."""
MAX_IN_FLIGHT = 16
"""Maximum number of webhooks that are served at a time, each by a thread."""
MAX_IN_FLIGHT_PER_USER = 4
"""Maximum number of a user's webhooks that are served at a time: receivers that hang cannot occupy
all threads.
"""
MAX_AT_A_TIME = 100
"""Messages after which a webhook lets others go first."""
MAX_TURN_S = 10.0
"""Seconds after which a webhook starts no other message, but lets others go first."""
MAX_MESSAGE_CHARS = 300
"""Maximum length of the reason that is stored for a failed attempt; a receiver may have chosen it.
"""
STOP_S = 2.0
"""Longest wait for requests in flight when the scheduler stops; an unfinished one is sent again."""
_log = structlog.get_logger()


class WebhookDelivery:
    """Sends due messages; safe to run in two schedulers at once.

    At most one request of a webhook is in flight, and a webhook whose attempt failed pauses, so a
    receiver that is slow or unreachable delays mostly its own messages.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        sender: WebhookSender | None = None,
        random_fraction: Callable[[], float] = random.random,
        counts: SchedulerCounts | None = None,
    ) -> None:
        self._queue = DeliveryQueue(database, clock)
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._sender = sender or WebhookSender(settings.webhook_networks)
        self._random_fraction = random_fraction
        self._counts = counts or SchedulerCounts()
        self._looked_at: float | None = None
        self._lock = threading.Lock()
        self._served: dict[str, tuple[str, threading.Thread]] = {}
        """User and thread by webhook, of those that are served now."""
        self._turns = WebhookTurns()
        self._stopped = threading.Event()

    def start_if_due(self) -> None:
        """Start a thread for each webhook with a message that is due, as far as there is room;
        receivers may be slow, and the scheduler's lease is short.
        """
        now = self._monotonic()
        if self._looked_at is not None and now - self._looked_at < INTERVAL_S:
            return
        self._looked_at = now
        with self._lock:
            busy = set(self._served)
            without = busy | self._turns.list_paused(now)
        if len(busy) >= MAX_IN_FLIGHT or self._stopped.is_set():
            return
        due = self._queue.list_due(without=without)
        with self._lock:
            due.sort(key=lambda webhook: self._turns.sort_key(webhook.id))
        for webhook in due:
            self._start(webhook)

    def stop(self) -> None:
        """Start no more requests, and wait a moment for those in flight."""
        self._stopped.set()
        limit = wait_clock() + STOP_S
        with self._lock:
            threads = [thread for _, thread in self._served.values()]
        for thread in threads:
            thread.join(max(0.0, limit - wait_clock()))

    def _start(self, webhook: DueWebhook) -> None:
        thread = threading.Thread(
            target=self._serve, args=(webhook.id,), name="webhook-delivery", daemon=True
        )
        with self._lock:
            users = [user for user, _ in self._served.values()]
            if len(users) >= MAX_IN_FLIGHT or users.count(webhook.user) >= MAX_IN_FLIGHT_PER_USER:
                return
            self._served[webhook.id] = (webhook.user, thread)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("webhook delivery not started", webhook_id=webhook.id, error=str(error))
            self._end_turn(webhook.id, has_failed=True)

    def _serve(self, webhook_id: str) -> None:
        """Give a webhook its turn: until no message is due, an attempt fails or the turn ends."""
        has_failed = True
        try:
            has_failed = self._deliver_due(webhook_id)
        except Exception as error:  # noqa: BLE001  # one that fails must not block the others
            log_failure("webhook", error, webhook_id=webhook_id)
        finally:
            self._end_turn(webhook_id, has_failed=has_failed)

    def _end_turn(self, webhook_id: str, *, has_failed: bool) -> None:
        now = self._monotonic()
        with self._lock:
            self._turns.record(webhook_id, has_failed=has_failed, now=now)
            del self._served[webhook_id]

    def _deliver_due(self, webhook_id: str) -> bool:
        """Send due messages of a webhook until its turn ends; return whether an attempt failed."""
        end = self._monotonic() + MAX_TURN_S
        for _ in range(MAX_AT_A_TIME):
            is_over = self._stopped.is_set() or self._monotonic() >= end
            claimed = None if is_over else self._queue.claim(webhook_id)
            if claimed is None:
                return False
            if not self._deliver(claimed):
                return True
        return False

    def _deliver(self, claimed: ClaimedDelivery) -> bool:
        """Attempt a delivery and record the outcome; return whether it succeeded.

        A process that is killed between claim and record has recorded nothing: the delivery is due
        again when its claim ends.
        """
        try:
            outcome = self._attempt(claimed)
        except LookupPostponed as error:
            self._queue.release(claimed)
            _log.info("webhook delivery postponed", webhook=claimed.name, reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001  # without an outcome, it would be tried for ever
            log_failure("webhook", error, webhook=claimed.name, delivery_id=claimed.id)
            outcome = AttemptOutcome(
                message=f"an error of the service ({type(error).__name__}), see the scheduler's log"
            )
        if not outcome.message:
            if self._queue.record_success(claimed, outcome):
                self._counts.count_webhook_attempt(DeliveryState.DELIVERED.value)
            return True
        self._record_failure(claimed, replace(outcome, message=outcome.message[:MAX_MESSAGE_CHARS]))
        return False

    def _record_failure(self, claimed: ClaimedDelivery, outcome: AttemptOutcome) -> None:
        state = self._queue.record_failure(
            claimed, outcome, random_fraction=self._random_fraction()
        )
        if state is not None:
            self._counts.count_webhook_attempt(state.value)
        log = _log.warning if state is DeliveryState.DEAD else _log.info
        log(
            "webhook delivery failed",
            webhook=claimed.name,
            user=claimed.user,
            delivery_id=claimed.id,
            attempt=f"{claimed.attempts} of {MAX_ATTEMPTS}",
            state="changed meanwhile" if state is None else state.value,
            reason=outcome.message,
        )

    def _attempt(self, claimed: ClaimedDelivery) -> AttemptOutcome:
        try:
            secrets = _decrypt_secrets(self._open_box(), claimed)
        except WrongKeyError:
            return AttemptOutcome(
                message="its secret was encrypted with another key than the scheduler has;"
                f" {GIVE_KEY}. If that key is lost, give the webhook another secret with 'accordion"
                f" webhook rotate-secret {claimed.name}'"
            )
        except SettingsError as error:
            return AttemptOutcome(message=f"its secret cannot be decrypted: {error}")
        body = claimed.body.encode()
        headers = sign_message(secrets, claimed.id, timestamp=int(self._clock()), body=body)
        return self._sender.send(claimed.url, headers=headers, body=body, user=claimed.user)

    def _open_box(self) -> SecretBox:
        """Return the box of the service's key.

        Raises:
            SettingsError: the key cannot be read, or there is none.
        """
        box = open_secret_box(self._settings)
        if box is None:
            raise SettingsError(
                f"the scheduler has no key, and {self._settings.home_secrets_key} does not exist;"
                f" {GIVE_KEY}"
            )
        return box


def _decrypt_secrets(box: SecretBox, claimed: ClaimedDelivery) -> list[str]:
    """Return the secrets with which a message is signed; a replaced one that was encrypted with
    another key is left out.

    Raises:
        WrongKeyError: the current secret was encrypted with another key.
    """
    secrets = [box.decrypt(claimed.encrypted)]
    for encrypted in claimed.previous:
        with suppress(WrongKeyError):
            secrets.append(box.decrypt(encrypted))
    return secrets
