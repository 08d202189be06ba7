"""Claims of deliveries: nothing is lost, whatever ends between a claim and its outcome."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, update

from accordion_service.domain.access import FULL_ACCESS, SCOPES_OF_ROLE, Role
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.domain.webhooks.retries import MAX_ATTEMPTS, RETRY_DELAYS_S, DeliveryState
from accordion_service.errors import Forbidden
from accordion_service.scheduler.retention import DEAD_RETENTION_S
from accordion_service.schemas.queries import AuditQuery
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.audit import read_audit
from accordion_service.store.reads.webhooks import ALL_USERS
from accordion_service.store.tables.models import DeliveryRow, JobRow, UserRow, WebhookRow
from accordion_service.store.writes import webhook_messages
from accordion_service.store.writes.delivery_queue import (
    CLAIM_S,
    DELIVERY,
    AttemptOutcome,
    ClaimedDelivery,
    DeliveryQueue,
)
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.old_rows import delete_deliveries
from accordion_service.store.writes.status_changes import change_status
from accordion_service.store.writes.webhook_messages import queue_status_messages
from accordion_service.store.writes.webhooks import DeliveryFilter, RequestedWebhook, WebhookStore
from accordion_workers.records.contract import JobSpec
from tests.api.world import DIGITS, Clock

TAKEN = AttemptOutcome(response_status=200)
FAILED = AttemptOutcome(response_status=500, message="the receiver responded with 500")
ALL = DeliveryFilter(limit=1000)
NEXT = {
    Status.QUEUED: Status.STARTING,
    Status.STARTING: Status.RUNNING,
    Status.RUNNING: Status.RECOVERING,
    Status.RECOVERING: Status.RUNNING,
}
"""A status that follows each of these."""


class Queue:
    """A job, a webhook that wants all of its changes, and the scheduler's side of it."""

    def __init__(self, database: Database) -> None:
        self.database, self.clock = database, Clock()
        self.queue = DeliveryQueue(database, self.clock)
        self.webhooks = WebhookStore(database, self.clock)
        self.webhooks.add_webhook(FULL_ACCESS, wanted("hook"))
        spec = JobSpec.model_validate(DIGITS)
        self.job_id = JobSubmission(database, self.clock, FULL_ACCESS).submit(spec, None)[0].id
        self.num_changes = 1
        self.arrived: Counter[str] = Counter()

    def change(self) -> None:
        """Let the job change its status."""
        with self.database.write() as session:
            job = session.get_one(JobRow, self.job_id)
            status, reason = NEXT[Status(job.status)], Reason.TRAINING
            change_status(session, job, status, reason=reason, message="", now=self.clock())
        self.num_changes += 1

    def delete_old(self) -> int:
        before = self.clock.now - DEAD_RETENTION_S
        return delete_deliveries(
            self.database, delivered_before=before, dead_before=before, limit=10
        )

    def claim(self) -> ClaimedDelivery | None:
        due = self.queue.list_due()
        return self.queue.claim(due[0].id) if due else None

    def states(self) -> Counter[str]:
        rows = self.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL)
        return Counter(row.state for row in rows)

    def take(self, step: str) -> None:
        """Let the time pass, the job change, or an attempt be made that ends in some way."""
        match step:
            case "change":
                return self.change()
            case "wait":
                self.clock.now += CLAIM_S
                return None
        claimed = self.claim()
        if claimed is None:
            return None
        if step in {"arrives", "arrives, then its sender dies"}:
            self.arrived[claimed.id] += 1
        if step == "arrives":
            self.queue.record_success(claimed, TAKEN)
        if step == "fails":
            self.queue.record_failure(claimed, FAILED, random_fraction=0.5)
        return None


def wanted(name: str) -> RequestedWebhook:
    return RequestedWebhook(
        name=name,
        url="https://hooks.test/x",
        statuses=list(Status),
        label=None,
        all_jobs=False,
        service_url="http://127.0.0.1:1/",
        encrypted="",
    )


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)


STEPS = st.sampled_from(
    ["change", "wait", "arrives", "fails", "its sender dies", "arrives, then its sender dies"]
)


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(steps=st.lists(STEPS, max_size=12))
def test_every_change_arrives_at_least_once_whatever_ends_in_between(
    database: Database, steps: list[str]
) -> None:
    with database.write() as session:
        session.execute(delete(WebhookRow))
    queue = Queue(database)
    for step in steps:
        queue.take(step)
    for _ in range(queue.num_changes * (MAX_ATTEMPTS + len(steps))):
        if not queue.states()[DeliveryState.PENDING]:
            break
        queue.clock.now += 2 * max(RETRY_DELAYS_S)
        queue.take("arrives")
    given_up = steps.count("fails") >= MAX_ATTEMPTS
    assert queue.states()[DeliveryState.PENDING] == 0
    assert len(queue.arrived) == queue.num_changes or given_up
    assert sum(queue.states().values()) == queue.num_changes


def test_a_delivery_is_claimed_by_one_scheduler_at_a_time(queue: Queue, database: Database) -> None:
    [due] = queue.queue.list_due()
    schedulers = [DeliveryQueue(database, queue.clock) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda scheduler: scheduler.claim(due.id), schedulers))
    assert len([claim for claim in claims if claim is not None]) == 1
    queue.clock.now += CLAIM_S
    assert schedulers[0].claim(due.id) is not None


def test_an_outcome_that_comes_after_another_claim_changes_nothing(queue: Queue) -> None:
    slow = queue.claim()
    queue.clock.now += CLAIM_S
    quick = queue.claim()
    assert slow is not None
    assert quick is not None
    queue.queue.record_failure(slow, FAILED, random_fraction=0.0)
    assert queue.queue.record_success(quick, TAKEN)
    assert not queue.queue.record_success(slow, TAKEN)
    [row] = queue.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL)
    assert (row.state, row.attempts, row.message) == (DeliveryState.DELIVERED, 2, "")


def test_a_delivery_that_was_sent_again_meanwhile_stays_due(queue: Queue) -> None:
    claimed = queue.claim()
    assert claimed is not None
    again = queue.webhooks.send_again(FULL_ACCESS, "hook", claimed.id)
    assert not queue.queue.record_success(claimed, TAKEN)
    assert (again.state, again.attempts) == (DeliveryState.PENDING, 0)
    assert [due.user for due in queue.queue.list_due()] == [FULL_ACCESS.user]


def test_the_delivery_that_waits_longest_is_claimed_first(queue: Queue) -> None:
    ids = []
    for _ in range(2):
        queue.clock.now += 1
        queue.change()
    while (claimed := queue.claim()) is not None:
        ids.append(claimed.id)
    assert ids == sorted(ids)
    assert len(ids) == 3


def test_a_message_is_given_up_after_the_last_attempt_only(queue: Queue) -> None:
    for number in range(1, MAX_ATTEMPTS + 1):
        claimed = queue.claim()
        assert claimed is not None
        assert claimed.attempts == number
        state = queue.queue.record_failure(claimed, FAILED, random_fraction=1.0)
        assert (state is DeliveryState.DEAD) == (number == MAX_ATTEMPTS)
        queue.clock.now += 2 * max(RETRY_DELAYS_S)
    assert queue.claim() is None
    with queue.database.read() as session:
        [row] = session.query(DeliveryRow).all()
    assert (row.state, row.next_attempt_at) == (DeliveryState.DEAD, None)


def test_a_message_whose_attempts_all_end_without_an_outcome_is_given_up(queue: Queue) -> None:
    for _ in range(MAX_ATTEMPTS):
        assert queue.claim() is not None
        queue.clock.now += CLAIM_S
    queue.change()
    claimed = queue.claim()
    dead, waiting = reversed(queue.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL))
    assert claimed is not None
    assert claimed.id == waiting.id
    assert (dead.state, dead.next_attempt_at) == (DeliveryState.DEAD, None)
    assert dead.message == "given up: none of 8 attempts came to an end"


def test_a_claim_that_is_released_costs_no_attempt(queue: Queue) -> None:
    for _ in range(2 * MAX_ATTEMPTS):
        claimed = queue.claim()
        assert claimed is not None
        assert claimed.attempts == 1
        queue.queue.release(claimed)


def test_an_outcome_that_is_not_recorded_has_no_state(queue: Queue) -> None:
    claimed = queue.claim()
    assert claimed is not None
    queue.webhooks.send_again(FULL_ACCESS, "hook", claimed.id)
    assert queue.queue.record_failure(claimed, FAILED, random_fraction=0.5) is None


def test_a_webhook_of_a_disabled_user_is_neither_due_nor_claimed(queue: Queue) -> None:
    [due] = queue.queue.list_due()
    with queue.database.write() as session:
        session.get_one(UserRow, FULL_ACCESS.user).disabled_at = 1.0
    assert queue.queue.claim(due.id) is None
    assert queue.queue.list_due() == []


def test_a_webhook_for_all_jobs_is_served_only_if_its_user_may_see_them(queue: Queue) -> None:
    [due] = queue.queue.list_due()
    with queue.database.write() as session:
        session.get_one(WebhookRow, due.id).jobs_of = ALL_USERS
        session.get_one(UserRow, FULL_ACCESS.user).role = Role.EDITOR.value
    assert queue.queue.claim(due.id) is None
    assert queue.queue.list_due() == []
    limited = replace(FULL_ACCESS, scopes=SCOPES_OF_ROLE[Role.EDITOR])
    with pytest.raises(Forbidden, match="may not see without the scope 'read:all'"):
        queue.webhooks.list_deliveries(limited, "hook", ALL)


def test_retention_keeps_a_message_that_waits_for_an_attempt(queue: Queue) -> None:
    claimed = queue.claim()
    assert claimed is not None
    gone = AttemptOutcome(message="no")
    with queue.database.write() as session:
        session.get_one(DeliveryRow, claimed.id).attempts = MAX_ATTEMPTS
    queue.queue.record_failure(replace(claimed, attempts=MAX_ATTEMPTS), gone, random_fraction=0.0)
    queue.clock.now += DEAD_RETENTION_S - 1
    queue.webhooks.send_again(FULL_ACCESS, "hook", claimed.id)
    queue.clock.now += 3600
    assert queue.delete_old() == 0
    queue.clock.now += DEAD_RETENTION_S
    with queue.database.write() as session:
        session.get_one(UserRow, FULL_ACCESS.user).disabled_at = 1.0
    assert queue.delete_old() == 1


@pytest.mark.parametrize("time", [math.nan, -1e12, -1e300, 0.0])
def test_a_message_is_not_older_than_its_job_whatever_time_is_given(
    queue: Queue, time: float
) -> None:
    queue.take("arrives")
    with queue.database.write() as session:
        job = session.get_one(JobRow, queue.job_id)
        job.status = Status.STARTING.value
        queue_status_messages(session, job, Status.QUEUED, now=time)
    newest = queue.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL)[0]
    assert (newest.created_at, newest.next_attempt_at) == (queue.clock.now, queue.clock.now)
    assert json.loads(newest.body)["timestamp"] == "2027-01-15T08:00:00.000Z"


def test_all_messages_beyond_the_limit_are_given_up(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        queue.change()
    monkeypatch.setattr(webhook_messages, "MAX_PENDING", 2)
    queue.change()
    assert queue.states() == {DeliveryState.DEAD: 4, DeliveryState.PENDING: 2}
    oldest = queue.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL)[-1]
    queue.webhooks.send_again(FULL_ACCESS, "hook", oldest.id)
    assert queue.states() == {DeliveryState.DEAD: 4, DeliveryState.PENDING: 2}


def test_a_webhook_that_is_disabled_by_its_receiver_is_in_the_audit_log(queue: Queue) -> None:
    claimed = queue.claim()
    assert claimed is not None
    gone = AttemptOutcome(response_status=410, message="gone")
    queue.queue.record_failure(claimed, gone, random_fraction=0.0)
    [entry] = read_audit(queue.database, AuditQuery(subject="hook", user=DELIVERY.user), limit=2)
    assert entry.action == "webhook.disabled"
    assert entry.after is not None
    assert entry.after["user"] == FULL_ACCESS.user


@pytest.fixture
def shared(postgres_url: str) -> Iterator[Queue]:
    """A queue in PostgreSQL, where several transactions write at a time."""
    database = Database(postgres_url)
    yield Queue(database)
    database.close()


def test_a_test_message_and_a_change_of_status_do_not_wait_for_each_other(shared: Queue) -> None:
    with shared.database.write() as session:
        job = session.get_one(JobRow, shared.job_id)
        queue_status_messages(session, job, None, now=shared.clock())
        session.flush()
        sent = shared.webhooks.queue_test(FULL_ACCESS, "hook")
        shared.webhooks.send_again(FULL_ACCESS, "hook", sent.id)
    assert shared.states() == {DeliveryState.PENDING: 3}


def test_neither_retention_nor_the_limit_waits_for_a_message_that_is_locked(
    shared: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_messages, "MAX_PENDING", 1)
    shared.clock.now += DEAD_RETENTION_S + 1
    with shared.database.write() as session:
        session.execute(update(DeliveryRow).values(message="locked"))
        assert shared.delete_old() == 0
        shared.change()
    assert shared.states() == {DeliveryState.PENDING: 2}
    shared.change()
    assert shared.states() == {DeliveryState.PENDING: 1, DeliveryState.DEAD: 2}


def test_messages_are_locked_in_one_order_before_all_are_changed(shared: Queue) -> None:
    for _ in range(3):
        shared.change()
    claimed = shared.claim()
    assert claimed is not None
    locked: list[str] = []

    def note(*details: Any) -> None:
        if "webhook_deliveries" in details[2] and "FOR UPDATE" in details[2]:
            locked.append(details[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        gone = AttemptOutcome(response_status=410, message="gone")
        shared.queue.record_failure(claimed, gone, random_fraction=0.0)
        shared.webhooks.remove_webhook(FULL_ACCESS, "hook")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(locked) == 2
    assert all("ORDER BY webhook_deliveries.id" in statement for statement in locked)
