"""Claims of deliveries: nothing is lost, whatever ends between a claim and its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from service.domain.access import FULL_ACCESS
from service.domain.jobs import Reason, Status
from service.domain.webhook_retries import MAX_ATTEMPTS, RETRY_DELAYS_S, DeliveryState
from service.store.database import Database
from service.store.delivery_queue import CLAIM_S, AttemptOutcome, ClaimedDelivery, DeliveryQueue
from service.store.job_submission import JobSubmission
from service.store.models import DeliveryRow, JobRow, WebhookRow
from service.store.status_changes import change_status
from service.store.webhook_rows import DeliveryFilter, RequestedWebhook, WebhookStore
from tests.api.world import DIGITS, Clock
from workers.contract import JobSpec

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
            self.queue.record_failure(claimed, FAILED, draw=0.5)
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
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)


STEPS = st.sampled_from(
    ["change", "wait", "arrives", "fails", "its sender dies", "arrives, then its sender dies"]
)


@pytest.mark.each_database
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


@pytest.mark.each_database
def test_a_delivery_is_claimed_by_one_scheduler_at_a_time(queue: Queue, database: Database) -> None:
    [due] = queue.queue.list_due()
    schedulers = [DeliveryQueue(database, queue.clock) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda scheduler: scheduler.claim(due.id), schedulers))
    assert len([claim for claim in claims if claim is not None]) == 1
    queue.clock.now += CLAIM_S
    assert schedulers[0].claim(due.id) is not None


@pytest.mark.each_database
def test_an_outcome_that_comes_after_another_claim_changes_nothing(queue: Queue) -> None:
    slow = queue.claim()
    queue.clock.now += CLAIM_S
    quick = queue.claim()
    assert slow is not None
    assert quick is not None
    queue.queue.record_failure(slow, FAILED, draw=0.0)
    assert queue.queue.record_success(quick, TAKEN)
    assert not queue.queue.record_success(slow, TAKEN)
    [row] = queue.webhooks.list_deliveries(FULL_ACCESS, "hook", ALL)
    assert (row.state, row.attempts, row.message) == (DeliveryState.DELIVERED, 2, "")


@pytest.mark.each_database
def test_a_delivery_that_was_sent_again_meanwhile_stays_due(queue: Queue) -> None:
    claimed = queue.claim()
    assert claimed is not None
    again = queue.webhooks.send_again(FULL_ACCESS, "hook", claimed.id)
    assert not queue.queue.record_success(claimed, TAKEN)
    assert (again.state, again.attempts) == (DeliveryState.PENDING, 0)
    assert [due.user for due in queue.queue.list_due()] == [FULL_ACCESS.user]


@pytest.mark.each_database
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
        state = queue.queue.record_failure(claimed, FAILED, draw=1.0)
        assert (state is DeliveryState.DEAD) == (number == MAX_ATTEMPTS)
        queue.clock.now += 2 * max(RETRY_DELAYS_S)
    assert queue.claim() is None
    with queue.database.read() as session:
        [row] = session.query(DeliveryRow).all()
    assert (row.state, row.next_attempt_at) == (DeliveryState.DEAD, None)
