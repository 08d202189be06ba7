"""The scheduler's view of nodes that take no workers, over a database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.capacity.nodes import AvoidanceRules, start_avoidances
from accordion_service.process.trusted_clock import AGREED_S
from accordion_service.runtime.protocol import Node
from accordion_service.scheduler.nodes import NodeAvoidance
from accordion_service.scheduler.retention import NODE_FAILURE_RETENTION_S, RowRetention
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import JobRow, NodeFailureRow
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.leases import Lease
from accordion_service.store.writes.nodes import NodeStore
from accordion_workers.records.contract import JobSpec
from tests.api.world import DIGITS

NOW = 1_800_000_000.0
WHY = (
    "node 10.0.0.7 is cordoned by ada; an operator can restore it with 'accordion node restore"
    " 10.0.0.7'"
)


@dataclass
class World:
    """A scheduler's part for nodes, and its lease."""

    database: Database
    now: float = NOW
    lease: Lease = field(init=False)
    avoidance: NodeAvoidance = field(init=False)

    def __post_init__(self) -> None:
        self.lease = self.new_lease("first")
        self.avoidance = NodeAvoidance(self.database, load_settings(), self.clock)
        self.store = NodeStore(self.database, self.clock)

    def clock(self) -> float:
        return self.now

    def new_lease(self, owner: str) -> Lease:
        clocks = {"clock": self.clock, "monotonic": self.clock}
        return Lease(self.database, owner=owner, lease_s=3.0, **clocks)

    def fail(self, node: str, *jobs: str, ago_s: float = 10.0) -> None:
        with self.database.write() as session:
            session.add_all(
                NodeFailureRow(
                    node=node, time=self.now - ago_s, job_id=job, attempt=1, reason="it was killed"
                )
                for job in jobs
            )

    def mark(self, *nodes: Node) -> list[str]:
        """Why nodes take no workers, as of the next survey."""
        token = self.lease.hold()
        assert token is not None
        return [one.unschedulable for one in self.avoidance.mark_nodes(nodes, token)]


def node(number: int, **changes: object) -> Node:
    plain = Node(
        id=f"id-{number}",
        address=f"10.0.0.{number}",
        alive=True,
        cpus=4.0,
        gpus=0.0,
        memory_bytes=0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def here(database: Database) -> World:
    return World(database)


def test_a_node_stays_avoided_when_ray_restarts_on_it(here: World) -> None:
    here.fail("10.0.0.7", "one", "one", "two")
    first = here.mark(node(7), node(8))
    assert first[0].startswith("node 10.0.0.7 is avoided until 2027-01-15 08:30 UTC after 3 ")
    assert first[1] == ""
    again = here.mark(node(7, alive=False), node(7, id="another"), node(8))
    assert again == [first[0], first[0], ""]
    here.now += 1801
    assert here.mark(node(7), node(8)) == ["", ""]


def test_a_node_is_known_by_the_name_that_ray_was_given(here: World) -> None:
    here.fail("gpu-7", "one", "one", "two")
    moved = node(3, name="gpu-7")
    assert "node gpu-7 is avoided" in here.mark(moved, node(8))[0]


def test_the_only_node_that_could_take_workers_is_not_avoided(here: World) -> None:
    here.fail("10.0.0.7", "one", "one", "two")
    assert here.mark(node(7), node(1, cpus=0.0)) == ["", ""]
    assert here.store.read_records()["10.0.0.7"].is_avoided(here.now)


def test_a_cordoned_node_takes_no_workers_until_it_is_restored(here: World) -> None:
    ada = replace(FULL_ACCESS, user="ada")
    here.store.cordon(ada, "10.0.0.7", "")
    assert here.mark(node(7)) == [WHY]
    here.now += 1e6
    assert here.mark(node(7)) == [WHY]
    here.store.restore(ada, "10.0.0.7")
    assert here.mark(node(7)) == [""]


def orders_version(here: World, job_id: str) -> int:
    with here.database.read() as session:
        row = session.get(JobRow, job_id)
        assert row is not None
        return row.orders_version


def test_jobs_with_workers_get_new_orders_when_these_nodes_change(here: World) -> None:
    submission = JobSubmission(here.database, here.clock, FULL_ACCESS)
    queued, running = (submission.submit(JobSpec.model_validate(DIGITS), None)[0] for _ in range(2))
    with here.database.write() as session:
        row = session.get(JobRow, running.id)
        assert row is not None
        row.workers = 1
    before = orders_version(here, running.id)
    here.mark(node(7))
    assert orders_version(here, running.id) == before
    here.store.cordon(FULL_ACCESS, "10.0.0.7", "")
    for _ in range(3):
        here.mark(node(7))
        assert orders_version(here, running.id) == before + 1
    here.store.cordon(FULL_ACCESS, "10.0.0.7", "new GPUs")
    here.mark(node(7))
    assert orders_version(here, running.id) == before + 1, "only the reason is another one"
    here.mark(node(7, id="another"))
    assert orders_version(here, running.id) == before + 2, "its ID is another one"
    assert orders_version(here, queued.id) == queued.orders_version


def test_a_scheduler_that_lost_its_lease_avoids_nothing(here: World) -> None:
    token = here.lease.hold()
    assert token is not None
    here.now += 10
    assert here.new_lease("second").hold() == token + 1
    here.fail("10.0.0.7", "one", "one", "two")
    assert here.avoidance.mark_nodes([node(7), node(8)], token)[0].unschedulable == ""


def test_a_repeated_cordon_has_no_effect(here: World) -> None:
    here.store.cordon(FULL_ACCESS, "a", "new GPUs")
    at = here.store.read_records()["a"].cordoned_at
    here.now += 5
    here.store.cordon(FULL_ACCESS, "a", "new GPUs")
    assert here.store.read_records()["a"].cordoned_at == at
    here.store.restore(FULL_ACCESS, "b")
    assert list(here.store.read_records()) == ["a"]


def test_failures_are_listed_newest_first_and_by_age(here: World) -> None:
    here.fail("a", "old", ago_s=3600)
    here.fail("a", "one", ago_s=60)
    here.fail("b", "two", ago_s=5)
    assert [row.job_id for row in here.store.list_failures(last_s=3600, per_node=9)] == [
        "two",
        "one",
    ]


def test_old_failures_are_deleted_with_other_old_rows(here: World) -> None:
    here.fail("a", "old", ago_s=NODE_FAILURE_RETENTION_S + 1)
    here.fail("a", "kept", ago_s=NODE_FAILURE_RETENTION_S - AGREED_S - 1)
    retention = RowRetention(here.database, load_settings(), clock=here.clock, monotonic=here.clock)
    here.now += AGREED_S
    retention.delete_if_due()
    assert [one.job_id for one in here.store.read_failures(last_s=1e9)] == ["kept"]


def test_a_restore_after_the_failures_were_read_is_not_undone(here: World) -> None:
    here.fail("10.0.0.7", "one", "one", "two")
    rules = AvoidanceRules(failures=3, window_s=1800, first_s=1800, longest_s=86_400)
    failures = here.store.read_failures(last_s=1800)
    [decided] = start_avoidances(failures, here.store.read_records(), rules, now=here.now)
    here.store.cordon(FULL_ACCESS, "10.0.0.7", "")
    here.store.restore(FULL_ACCESS, "10.0.0.7")
    here.store.start_avoidance(decided, here.lease.hold() or 0)
    assert here.mark(node(7), node(8)) == ["", ""]
