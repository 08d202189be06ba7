"""Rows that a query reads, by the query plan of each database: ended jobs cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from service import allocator
from service.metrics import metrics_response
from service.store.database import Database
from service.store.repository import JobFilter, Repository
from tests.api.world import World
from tests.unit.service.many_rows import add_ended_jobs, add_webhooks
from tests.unit.service.query_plans import PRIMARY_KEY, SMALL_TABLES, Plan, explain


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url=database_url)
    yield world
    world.close()


@contextmanager
def selects(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Reading statements, with their values, in the order in which they ran."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            seen.append((statement, values))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def plans_of(database: Database, found: Sequence[tuple[str, Any]]) -> list[Plan]:
    return [explain(database.engine, statement, values) for statement, values in found]


def full_scans(database: Database, found: Sequence[tuple[str, Any]]) -> list[str]:
    """Statements that read all rows of a table."""
    plans = zip(found, plans_of(database, found), strict=True)
    return [statement for (statement, _), plan in plans if plan.reads_all_rows()]


@pytest.fixture(scope="module")
def listed(shared_database_url: str) -> Iterator[Repository]:
    """A service with many ended jobs."""
    database = Database(shared_database_url)
    add_ended_jobs(database)
    yield Repository(database)
    database.close()


def test_a_turn_of_the_scheduler_reads_no_job_that_has_ended(world: World) -> None:
    add_ended_jobs(world.database)
    add_webhooks(world.database)
    world.train(world.submit())
    world.submit(workers={"min": 4, "max": 4})
    with selects(world.database) as found:
        world.turn(8)
    assert len(found) > 8
    assert full_scans(world.database, found) == []


def test_a_change_of_status_looks_webhooks_up_by_index(world: World) -> None:
    add_webhooks(world.database)
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "FROM webhooks" in statement:
            seen.append((statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        world.cancel(world.submit())
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(seen) == 2
    assert full_scans(world.database, seen) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda repository: repository.jobs(JobFilter()),
        lambda repository: repository.jobs(JobFilter(statuses=["RUNNING"])),
        lambda repository: repository.jobs(JobFilter(name="n")),
        lambda repository: repository.jobs(JobFilter(id_prefix="01a2")),
        lambda repository: repository.jobs(JobFilter(before=(1.0, "j"))),
        lambda repository: repository.jobs(JobFilter(archived=True)),
        lambda repository: repository.shown(1.0),
        lambda repository: repository.count_by_status(),
    ],
)
def test_a_list_reads_no_more_rows_than_it_shows(
    listed: Repository, read: Callable[[Repository], Any]
) -> None:
    with selects(listed.database) as found:
        read(listed)
    assert full_scans(listed.database, found) == []


_BY_AGE = "ix_jobs_archived_created_at_id_kind_owner_name"


def plan_of_list(repository: Repository, **filters: Any) -> Plan:
    """The plan of the only statement of a list of jobs."""
    with selects(repository.database) as found:
        repository.jobs(JobFilter(**filters))
    [plan] = plans_of(repository.database, found)
    return plan


@pytest.mark.parametrize("archived", [False, True, None])
@pytest.mark.parametrize(
    ("filters", "index", "columns"),
    [
        ({}, _BY_AGE, ("archived",)),
        ({"before": (1.0, "j")}, _BY_AGE, ("archived", "created_at", "id")),
        (
            {"statuses": ["FAILED"]},
            "ix_jobs_status_archived_created_at_id",
            ("status", "archived"),
        ),
        ({"name": "n"}, "ix_jobs_name_archived_created_at_id", ("name", "archived")),
        ({"owner": "user-7"}, "ix_jobs_owner_archived_created_at_id", ("owner", "archived")),
        ({"id_prefix": "01a2"}, PRIMARY_KEY, ("id",)),
    ],
)
def test_a_filter_is_served_by_an_index(
    listed: Repository,
    filters: dict[str, Any],
    index: str,
    columns: tuple[str, ...],
    archived: bool | None,
) -> None:
    reads = plan_of_list(listed, **filters, archived=archived).reads
    is_merged = archived is None and "id_prefix" not in filters
    # The rows of the page are then read by their ids.
    expected = [(index, columns)] * (2 if is_merged else 1) + [(PRIMARY_KEY, ("id",))]
    assert sorted((read.index, read.columns) for read in reads) == sorted(expected)


@pytest.mark.parametrize(
    "filters", [{}, {"name": "n"}, {"owner": "user-7"}, {"statuses": ["FAILED"]}]
)
@pytest.mark.parametrize("archived", [False, True, None])
def test_a_list_is_read_in_the_order_of_an_index(
    listed: Repository, filters: dict[str, Any], archived: bool | None
) -> None:
    assert plan_of_list(listed, **filters, archived=archived).num_sorts == 0


@pytest.mark.parametrize(
    "filters",
    [{"kind": "guest"}, {"visible_to": "user-7"}, {"name_prefix": "n"}, {"owner": "user-7"}],
)
def test_no_row_is_read_to_find_the_jobs_of_a_page(
    listed: Repository, filters: dict[str, Any]
) -> None:
    reads = [read for read in plan_of_list(listed, **filters).reads if "archived" in read.columns]
    assert reads
    assert all(read.is_covered for read in reads)


def test_a_change_at_the_head_of_the_queue_rewrites_no_job_behind_it(world: World) -> None:
    world.train(world.submit(workers={"min": 4, "max": 4}, training={"epochs": 400}))
    first = world.submit(workers={"min": 3, "max": 3})
    behind = [world.submit(workers={"min": 2, "max": 2}) for _ in range(3)]
    world.turn()
    versions = [world.job(job_id).version for job_id in behind[1:]]
    world.cancel(first)
    world.turn(3)
    assert [world.job(job_id).version for job_id in behind[1:]] == versions
    assert world.repository.first_without_capacity([world.job(behind[1])]) == behind[0]


def test_a_cluster_that_stays_away_rewrites_no_waiting_job(world: World) -> None:
    world.submit(workers={"min": 4, "max": 4})
    waiting = world.submit(workers={"min": 4, "max": 4})
    world.turn()
    world.runtime.down = True
    world.turn(3)
    version = world.job(waiting).version
    world.turn(3)
    assert (world.job(waiting).reason, world.job(waiting).version) == (
        "CLUSTER_UNREACHABLE",
        version,
    )


def test_a_scrape_asks_as_often_however_many_jobs_there_are(world: World) -> None:
    def scrape() -> int:
        with selects(world.database) as found:
            metrics_response(world.repository, datetime.fromtimestamp(world.clock.now, UTC))
        return len(found)

    world.train(world.submit())
    once = scrape()
    for _ in range(40):
        world.submit(workers={"min": 4, "max": 4})
    world.turn()
    assert scrape() == once


def test_a_scrape_looks_every_row_up_by_an_index(world: World) -> None:
    add_ended_jobs(world.database)
    add_webhooks(world.database)
    world.train(world.submit())
    world.submit(workers={"min": 4, "max": 4})
    world.turn()
    with selects(world.database) as found:
        metrics_response(world.repository, datetime.fromtimestamp(world.clock.now, UTC))
    reads = [read for plan in plans_of(world.database, found) for read in plan.reads]
    assert len(reads) > len(found) > 8
    assert [one for one in reads if not one.columns and one.table not in SMALL_TABLES] == []


def test_a_turn_without_a_change_plans_no_grants(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []
    plan = allocator.plan_allocations
    monkeypatch.setattr(
        allocator,
        "plan_allocations",
        lambda *given, **more: (planned.append(given), plan(*given, **more))[1],
    )
    job_id = world.submit(workers={"min": 4, "max": 4}, training={"epochs": 400})
    world.train(job_id)
    world.turn(2)
    count = len(planned)
    world.turn(5)
    assert len(planned) == count
    world.resize(job_id, 1, 2)
    world.turn()
    assert len(planned) > count
