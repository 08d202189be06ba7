"""Threads that deliver messages: what they share, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accordion_service.access.host_lookup import LookupPostponed
from accordion_service.domain.access import ADMIN_USER, FULL_ACCESS, Caller, Role, Scope
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.domain.webhooks.serving_order import MAX_PAUSE_S
from accordion_service.domain.webhooks.signatures import new_signing_secret
from accordion_service.scheduler import webhooks
from accordion_service.scheduler.webhook_sender import WebhookSender
from accordion_service.scheduler.webhooks import (
    INTERVAL_S,
    MAX_MESSAGE_CHARS,
    MAX_TURN_S,
    WebhookDelivery,
)
from accordion_service.settings.secret_box import create_secret_box
from accordion_service.store.writes.accounts import AccountStore
from accordion_service.store.writes.delivery_queue import CLAIM_S, AttemptOutcome
from accordion_service.store.writes.webhooks import DeliveryFilter, RequestedWebhook, WebhookStore
from tests.api.team import wait_for
from tests.api.webhook_receiver import LOOPBACK, Receiver, run_receiver
from tests.api.world import World

ALL = DeliveryFilter(limit=100)


class Sending:
    """Webhooks of users over one database, and the threads that deliver to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = WebhookStore(world.database, world.clock)
        self.delivery = self.new_delivery()

    def new_delivery(self, sender: WebhookSender | None = None) -> WebhookDelivery:
        clocks = {"clock": self.world.clock, "monotonic": self.world.clock.monotonic}
        return WebhookDelivery(self.world.database, self.world.settings, **clocks, sender=sender)

    def queue(self, name: str, url: str, *, user: str = ADMIN_USER) -> None:
        """Add a webhook with a message."""
        box, caller = create_secret_box(self.world.settings), self.caller(user)
        wanted = RequestedWebhook(
            name=name,
            url=url,
            statuses=list(Status),
            label=None,
            all_jobs=False,
            service_url="",
            encrypted=box.encrypt(new_signing_secret()),
        )
        self.store.add_webhook(caller, wanted)
        self.store.queue_test(caller, name)

    def start(self) -> None:
        self.world.clock.now += INTERVAL_S
        self.delivery.start_if_due()

    def states(self, name: str, user: str = ADMIN_USER) -> list[str]:
        return [row.state for row in self.store.list_deliveries(self.caller(user), name, ALL)]

    @staticmethod
    def num_threads() -> int:
        """Number of threads that send."""
        return sum(one.name == "webhook-delivery" for one in threading.enumerate())

    @staticmethod
    def caller(user: str) -> Caller:
        return Caller(user=user, scopes=frozenset(Scope))


@pytest.fixture
def sending(tmp_path: Path, database_url: str, receiver: Receiver) -> Iterator[Sending]:
    world = World(tmp_path, database_url=database_url, webhook_networks=LOOPBACK)
    sending = Sending(world)
    yield sending
    receiver.free.set()
    sending.delivery.stop()
    world.close()


def test_receivers_that_hang_leave_room_for_those_of_other_users(
    sending: Sending, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_IN_FLIGHT_PER_USER", 2)
    monkeypatch.setattr(webhooks, "MAX_IN_FLIGHT", 3)
    AccountStore(sending.world.database, sending.world.clock).add_user(
        FULL_ACCESS, "bob", Role.EDITOR
    )
    receiver.free.clear()
    for number in range(4):
        sending.queue(f"h{number}", receiver.url)
    with run_receiver() as other:
        sending.queue("his", other.url, user="bob")
        sending.start()
        wait_for(lambda: sending.states("his", "bob") == [DeliveryState.DELIVERED])
    sending.start()
    assert len(receiver.received) == 2
    receiver.free.set()
    names = [f"h{number}" for number in range(4)]

    def have_all_arrived() -> bool:
        sending.start()
        return all(sending.states(name) == [DeliveryState.DELIVERED] for name in names)

    wait_for(have_all_arrived)


def test_messages_of_a_webhook_are_sent_one_after_the_other_without_a_pause(
    sending: Sending, receiver: Receiver
) -> None:
    sending.queue("hook", receiver.url)
    for _ in range(4):
        sending.store.queue_test(FULL_ACCESS, "hook")
    sending.start()
    wait_for(lambda: sending.states("hook") == [DeliveryState.DELIVERED] * 5)
    ids = [request.id for request in receiver.received]
    assert ids == sorted(ids)


def test_a_request_in_flight_is_finished_when_the_scheduler_stops(
    sending: Sending, receiver: Receiver
) -> None:
    receiver.free.clear()
    sending.queue("hook", receiver.url)
    sending.store.queue_test(FULL_ACCESS, "hook")
    sending.start()
    wait_for(lambda: bool(receiver.received))
    receiver.free.set()
    sending.delivery.stop()
    assert sorted(sending.states("hook"))[0] == DeliveryState.DELIVERED
    num_requests = len(receiver.received)
    sending.start()
    assert len(receiver.received) == num_requests


class BrokenSender(WebhookSender):
    """A sender with a bug that shows at one URL."""

    is_broken = True

    def send(self, url: str, **more: Any) -> AttemptOutcome:
        if self.is_broken and url.endswith("/bug"):
            raise ZeroDivisionError
        return super().send(url, **more)


class HangingSender(WebhookSender):
    """A sender whose requests to one URL hang until a test lets them run into their limit."""

    def __init__(self) -> None:
        super().__init__(())
        self.limits = threading.Semaphore(0)

    def send(self, url: str, **more: Any) -> AttemptOutcome:
        if url.endswith("/hangs"):
            self.limits.acquire()
            return AttemptOutcome(message="no response" + "!" * 1000)
        return AttemptOutcome(response_status=204)


def test_receivers_that_hang_with_many_messages_take_turns_with_others(sending: Sending) -> None:
    sender = HangingSender()
    sending.delivery = sending.new_delivery(sender)
    accounts = AccountStore(sending.world.database, sending.world.clock)
    for user in ("u0", "u1", "u2", "u3", "ada"):
        accounts.add_user(FULL_ACCESS, user, Role.EDITOR)
    for number in range(16):
        name, user = f"h{number}", f"u{number % 4}"
        sending.queue(name, "https://8.8.8.8/hangs", user=user)
        for _ in range(3):
            sending.store.queue_test(sending.caller(user), name)
    sending.start()
    sending.queue("fine", "https://8.8.8.8/", user="ada")
    sending.start()
    assert sending.states("fine", "ada") == [DeliveryState.PENDING], "all threads are busy"
    sender.limits.release(16)
    wait_for(lambda: not sending.num_threads())
    sending.start()
    wait_for(lambda: sending.states("fine", "ada") == [DeliveryState.DELIVERED])
    sender.limits.release(1000)


def test_a_slow_receiver_lets_others_go_first_after_some_seconds(sending: Sending) -> None:
    class SlowSender(WebhookSender):
        def send(self, url: str, **more: Any) -> AttemptOutcome:
            sending.world.clock.now += MAX_TURN_S / 2
            return AttemptOutcome(response_status=204)

    sending.delivery = sending.new_delivery(SlowSender(()))
    sending.queue("slow", "https://8.8.8.8/")
    for _ in range(4):
        sending.store.queue_test(FULL_ACCESS, "slow")
    sending.start()
    wait_for(lambda: not sending.num_threads())
    assert sorted(sending.states("slow")) == ["DELIVERED"] * 2 + ["PENDING"] * 3


def test_the_reason_of_a_failure_is_cut(sending: Sending) -> None:
    sender = HangingSender()
    sending.delivery = sending.new_delivery(sender)
    sending.queue("hook", "https://8.8.8.8/hangs")
    sender.limits.release()
    sending.start()
    wait_for(lambda: not sending.num_threads())
    [row] = sending.store.list_deliveries(FULL_ACCESS, "hook", ALL)
    assert len(row.message) == MAX_MESSAGE_CHARS


class BusySender(WebhookSender):
    """A sender that has no room to resolve names at first."""

    is_busy = True

    def send(self, url: str, **more: Any) -> AttemptOutcome:
        if self.is_busy:
            raise LookupPostponed
        return AttemptOutcome(response_status=204)


def test_an_attempt_without_a_lookup_does_not_count(sending: Sending) -> None:
    sender = BusySender(())
    sending.delivery = sending.new_delivery(sender)
    sending.queue("hook", "https://hooks.test/")
    for _ in range(10):
        sending.start()
        wait_for(lambda: not sending.num_threads())
    [row] = sending.store.list_deliveries(FULL_ACCESS, "hook", ALL)
    assert (row.state, row.attempts, row.message) == (DeliveryState.PENDING, 0, "")
    sender.is_busy = False
    sending.world.clock.now += MAX_PAUSE_S
    sending.start()
    wait_for(lambda: sending.states("hook") == [DeliveryState.DELIVERED])


def test_a_thread_that_cannot_start_leaves_room(
    sending: Sending, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sending.queue("hook", receiver.url)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        sending.start()
    sending.world.clock.now += MAX_PAUSE_S
    sending.start()
    wait_for(lambda: sending.states("hook") == [DeliveryState.DELIVERED])


def test_a_stop_does_not_wait_for_a_receiver_that_hangs(
    sending: Sending, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "STOP_S", 0.1)
    receiver.free.clear()
    sending.queue("hook", receiver.url)
    sending.start()
    wait_for(lambda: bool(receiver.received))
    sending.delivery.stop()
    assert sending.states("hook") == [DeliveryState.PENDING]
    sending.world.clock.now += CLAIM_S
    receiver.free.set()
    sending.delivery = sending.new_delivery()
    sending.start()
    wait_for(lambda: sending.states("hook") == [DeliveryState.DELIVERED])


def test_an_unexpected_error_counts_as_a_failure(sending: Sending) -> None:
    sending.delivery = sending.new_delivery(BrokenSender(()))
    sending.queue("bug", "https://8.8.8.8/bug")
    sending.start()
    wait_for(lambda: not sending.num_threads())
    [row] = sending.store.list_deliveries(FULL_ACCESS, "bug", ALL)
    assert row.message == "an error of the service (ZeroDivisionError), see the scheduler's log"
    assert row.next_attempt_at is not None
    assert row.next_attempt_at < sending.world.clock.now + CLAIM_S


def test_an_unexpected_error_delays_one_webhook_and_loses_nothing(
    sending: Sending, receiver: Receiver
) -> None:
    sender = BrokenSender(sending.world.settings.webhook_networks)
    sending.delivery = sending.new_delivery(sender)
    sending.queue("bug", f"{receiver.url}/bug")
    sending.queue("fine", receiver.url)
    sending.start()
    wait_for(lambda: sending.states("fine") == [DeliveryState.DELIVERED])
    assert sending.states("bug") == [DeliveryState.PENDING]
    sender.is_broken = False
    sending.world.clock.now += CLAIM_S

    def has_arrived() -> bool:
        sending.start()
        return sending.states("bug") == [DeliveryState.DELIVERED]

    wait_for(has_arrived)
