"""Rows that a query reads, by SQLite's query plan: ended jobs cost nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.scheduler import allocator
from accordion_service.schemas.queries import Archived, AuditQuery
from accordion_service.store.engine.database import Database
from accordion_service.store.reads import job_list
from accordion_service.store.reads.audit import read_audit
from accordion_service.store.reads.job_list import JobFilter, ListingState
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.reads.unfinished_jobs import UnfinishedJobs
from accordion_service.store.tables.models import Base, JobRow
from accordion_service.store.writes.expired_history import ExpiredHistory
from accordion_service.store.writes.secrets import SecretStore
from accordion_service.views.metrics import metrics_response
from tests.api.world import World


@pytest.fixture
def world(tmp_path: Path, migrated_file: Path) -> Iterator[World]:
    shutil.copy(migrated_file, tmp_path / "accordion.db")
    world = World(tmp_path)
    yield world
    world.close()


@contextmanager
def selects(world: World) -> Iterator[list[tuple[str, Any]]]:
    """Reading statements, with their values, in the order in which they ran."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            seen.append((statement, values))

    event.listen(world.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(world.database.engine, "before_cursor_execute", note)


def full_scans(world: World, found: list[tuple[str, Any]]) -> list[str]:
    """Statements that read all rows of a table."""
    with world.database.engine.connect() as connection:
        plans = [
            (s, connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", values))
            for s, values in found
        ]
        return [s for s, plan in plans if any(_is_full_scan(step[3]) for step in plan)]


def _is_full_scan(step: str) -> bool:
    """Return whether a step of a plan reads all rows of a table; a page of jobs is none."""
    kind, name, *_ = step.split()
    return kind == "SCAN" and name in Base.metadata.tables and "INDEX" not in step


def test_a_turn_of_the_scheduler_reads_no_job_that_has_ended(world: World) -> None:
    world.train(world.submit())
    world.submit(workers={"min": 4, "max": 4})
    with selects(world) as found:
        world.turn(8)
    assert len(found) > 8
    assert full_scans(world, found) == []


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    """All statements, with their values, in the order in which they ran."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        seen.append((statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_a_change_of_status_looks_webhooks_up_by_index(world: World) -> None:
    with statements() as seen:
        world.cancel(world.submit())
    found = [one for one in seen if "FROM webhooks" in one[0]]
    assert len(found) == 2
    assert full_scans(world, found) == []


def test_the_removal_of_a_secret_looks_jobs_and_loggers_up_by_index(world: World) -> None:
    secrets = SecretStore(world.database, world.clock)
    secrets.set_secret(FULL_ACCESS, "hf-token", "x")
    with statements() as seen:
        secrets.remove_secret(FULL_ACCESS, "hf-token")
    found = [one for one in seen if one[0].startswith("SELECT jobs")]
    assert len(found) == 2
    assert full_scans(world, found) == []


def test_a_submission_writes_each_of_its_rows_once(world: World) -> None:
    with statements() as seen:
        world.submit()
    kinds = [statement.split()[0] for statement, _ in seen]
    assert (kinds.count("INSERT"), kinds.count("UPDATE")) == (3, 0)


@pytest.mark.parametrize(
    "read",
    [
        lambda jobs: jobs.find(JobFilter()),
        lambda jobs: jobs.find(JobFilter(status=["RUNNING"])),
        lambda jobs: jobs.find(JobFilter(name="n")),
        lambda jobs: jobs.find(JobFilter(id="01a2")),
        lambda jobs: jobs.find(JobFilter(before=(1.0, "j"))),
        lambda jobs: jobs.find(JobFilter(archived=Archived.TRUE)),
        lambda jobs: jobs.shown(1.0),
        lambda jobs: jobs.count_by_status(),
        lambda jobs: jobs.count_listed(None),
        lambda jobs: jobs.count_listed("ada"),
    ],
)
def test_a_list_reads_no_more_rows_than_it_shows(
    world: World, read: Callable[[JobReads], Any]
) -> None:
    with selects(world) as found:
        read(world.jobs)
    assert full_scans(world, found) == []


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda database: JobReads(database).shown(1999.0), 3),
        (lambda database: JobReads(database).unfinished(), 1),
        (lambda database: JobReads(database).unfinished_ids(), 1),
        (lambda database: QueueReads(database).allocated(), 0),
        (lambda database: QueueReads(database).waiting(), 1),
        (lambda database: UnfinishedJobs(database).list_all(), 1),
    ],
)
def test_no_old_job_is_read_once_the_database_knows_its_statistics(
    world: World, read: Callable[[Database], Collection[Any]], expected: int
) -> None:
    world.finish(world.submit())
    table = JobRow.__table__
    with world.database.connect_writer() as connection:
        [row] = connection.execute(select(table)).mappings()
        old = [{**row, "id": f"{n:036}", "ended_at": float(n)} for n in range(2000)]
        connection.execute(insert(table), old)
        connection.exec_driver_sql("ANALYZE")
    world.submit()
    # New connections read the statistics.
    world.database.close()
    with selects(world) as found:
        assert len(read(world.database)) == expected
    assert full_scans(world, found) == []


_AT_1, _AT_9 = "1970-01-01T00:00:01Z", "1970-01-01T00:00:09Z"
_BY_AGE = "ix_jobs_list (archived=?"


@pytest.mark.parametrize("archived", list(Archived))
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, _BY_AGE),
        ({"before": (1.0, "j")}, f"{_BY_AGE} AND (created_at,id)<(?,?)"),
        (
            {"status": ["FAILED"], "method": "topk"},
            "ix_jobs_status_list (status=? AND archived=?",
        ),
        (
            {"status": ["FAILED"], "name": "n", "owner": "ada"},
            "ix_jobs_status_list (status=? AND archived=?",
        ),
        ({"status": ["FAILED"], "name": "n"}, "ix_jobs_name_list (name=? AND archived=?"),
        ({"status": ["FAILED"], "owner": "ada"}, "ix_jobs_owner_list (owner=? AND archived=?"),
        (
            {"status": ["FAILED"], "id": "01a2"},
            "sqlite_autoindex_jobs_1 (id>? AND id<?",
        ),
        ({"name": "n"}, "ix_jobs_name_list (name=? AND archived=?"),
        ({"owner": "ada"}, "ix_jobs_owner_list (owner=? AND archived=?"),
        ({"visible_to": "ada", "workers": 0}, _BY_AGE),
        ({"id": "01a2"}, "sqlite_autoindex_jobs_1 (id>? AND id<?"),
    ],
)
def test_a_filter_is_served_by_an_index(
    world: World, filters: dict[str, Any], index: str, archived: Archived
) -> None:
    with selects(world) as found:
        world.jobs.find(JobFilter(**filters, archived=archived))
    [(statement, values)] = found
    with world.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        steps = [step[3] for step in plan if " jobs " in step[3]]
    used = [step for step in steps if index in step]
    is_merged = archived == Archived.ANY and "id" not in filters
    assert len(used) == (2 if is_merged else 1), steps
    assert all(step.startswith("SEARCH jobs USING ") for step in steps)


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "ix_audit_time_id"),
        ({"before_id": 1}, "ix_audit_time_id (time<?"),
        ({"time_after": _AT_1, "time_before": _AT_9}, "ix_audit_time_id (time>? AND time<?"),
        ({"user": "ada"}, "ix_audit_user_name_time_id (user_name=?"),
        ({"subject": "j", "time_before": _AT_9}, "ix_audit_subject_time_id (subject=? AND time<?"),
        (
            {"action": "job.cancelled", "before_id": 1},
            "ix_audit_action_time_id (action=? AND time<?",
        ),
        (
            {"token_id": "t", "time_after": _AT_1},
            "ix_audit_token_id_time_id (token_id=? AND time>?",
        ),
        ({"request_id": "r"}, "ix_audit_request_id_time_id (request_id=?"),
    ],
    ids=str,
)
def test_a_page_of_the_audit_log_is_read_in_the_order_of_an_index(
    world: World, filters: dict[str, Any], index: str
) -> None:
    world.submit()
    with selects(world) as found:
        before_id = filters.get("before_id")
        wanted = AuditQuery(**{name: filters[name] for name in filters.keys() - {"before_id"}})
        read_audit(world.database, wanted, limit=50, before_id=before_id)
    statement, values = found[-1]
    with world.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        [step] = [step[3] for step in plan]
    assert index in step


def test_old_histories_are_found_by_an_index_of_those_that_remain(world: World) -> None:
    with selects(world) as found:
        ExpiredHistory(world.database, world.clock).list_due(ended_before=1.0, limit=10)
    [step] = steps_of(world, found[-1])
    assert step.startswith("SEARCH jobs USING INDEX ix_jobs_history (ended_at<?)")


_LABEL = "job_labels USING COVERING INDEX ix_job_labels_list (key=? AND value=? AND archived=?"
_TEAM, _RUN = "team:a", "run:1"


def steps_of(world: World, statement: tuple[str, Any]) -> list[str]:
    """Steps of the plan of a statement that read a table or an index."""
    text, values = statement
    with world.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
        return [step[3] for step in plan if " job" in step[3]]


@pytest.mark.parametrize("archived", list(Archived))
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"before": (1.0, "j")},
        {"created_before": _AT_1, "kind": "guest"},
        {"owner": "ada"},
        {"visible_to": "ada", "name": "n"},
        {"name_prefix": "n", "id": "01a2"},
    ],
    ids=str,
)
def test_a_list_by_label_reads_the_index_of_labels_and_the_jobs_of_the_page(
    world: World, filters: dict[str, Any], archived: Archived
) -> None:
    with selects(world) as found:
        world.jobs.find(JobFilter(label=[_TEAM], archived=archived, **filters))
    [statement] = found
    page, *steps = steps_of(world, statement)
    assert page == "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"
    assert len(steps) == (2 if archived == Archived.ANY else 1), (
        "archived jobs and others are read apart"
    )
    assert all(_LABEL in step for step in steps), steps


def test_the_label_that_the_fewest_jobs_have_leads_a_list(world: World) -> None:
    world.submit(labels={"team": "a", "run": "1"})
    world.submit(labels={"team": "a"})
    with selects(world) as found:
        world.jobs.find(JobFilter(label=[_TEAM, _RUN]))
    [first, *others] = steps_of(world, found[-1])[1:]
    assert _LABEL in first
    assert [step.partition(" USING ")[2] for step in others] == ["PRIMARY KEY (job_id=? AND key=?)"]
    values = list(found[-1][1])
    assert values.index("run") < values.index("team"), "the other label is looked up"


@pytest.mark.parametrize("statuses", [["FAILED"], ["FAILED", "RUNNING"]], ids=str)
def test_a_label_that_many_jobs_have_is_looked_up_for_the_jobs_of_a_status(
    world: World, monkeypatch: pytest.MonkeyPatch, statuses: list[str]
) -> None:
    world.submit(labels={"team": "a"})
    monkeypatch.setattr(job_list, "MAX_ROWS", 0)
    with selects(world) as found:
        world.jobs.find(JobFilter(label=[_TEAM], status=statuses))
    steps = steps_of(world, found[-1])[1:]
    jobs = [step for step in steps if "ix_jobs_status_list (status=?" in step]
    assert len(jobs) == len(statuses)
    assert sum("PRIMARY KEY (job_id=? AND key=?)" in step for step in steps) == len(statuses)
    assert len(steps) == 2 * len(statuses)


def test_a_label_that_few_jobs_have_leads_a_list_of_a_status(world: World) -> None:
    world.submit(labels={"team": "a"})
    for _ in range(4):
        world.submit()
    with selects(world) as found:
        world.jobs.find(JobFilter(label=[_TEAM], status=["QUEUED"]))
    label, job = steps_of(world, found[-1])[1:]
    assert _LABEL in label
    assert job == "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"name": "n"},
        {"owner": "ada"},
        {"status": ["FAILED"]},
        {"status": ["FAILED", "RUNNING"]},
        {"label": [_TEAM]},
    ],
    ids=str,
)
@pytest.mark.parametrize("archived", list(Archived))
def test_a_list_is_read_in_the_order_of_an_index(
    world: World, filters: dict[str, Any], archived: Archived
) -> None:
    with selects(world) as found:
        world.jobs.find(JobFilter(**filters, archived=archived))
    [(statement, values)] = found
    with world.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        sorts = [step[3] for step in plan if "TEMP B-TREE" in step[3]]
    assert len(sorts) == 1, "only the jobs of the page are sorted"


@pytest.mark.parametrize(
    "filters",
    [
        {"kind": "guest"},
        {"visible_to": "ada"},
        {"name_prefix": "n"},
        {"owner": "ada"},
        {"priority": 99},
        {"task": "t", "method": "topk", "policy": "fixed"},
        {"cloned_from": "c" * 36, "workers": 7},
        {"reason": ["LOST"], "desired": ["PAUSE"]},
        {"started_after": _AT_1, "ended_before": _AT_9},
        {"status": ["FAILED", "RUNNING"], "method": "topk", "priority": 99},
        {"status": ["FAILED"], "ended_after": _AT_1},
        {"status": ["FAILED"], "name_prefix": "n", "kind": "job"},
        {"status": ["FAILED"], "visible_to": "ada"},
        {"status": ["FAILED"], "name": "n"},
        {"status": ["FAILED"], "owner": "ada", "visible_to": "ada"},
        {"status": ["FAILED"], "owner": "ada", "name": "n"},
        {"status": ["FAILED"], "owner": "ada", "task": "t"},
        {"label": [_TEAM], "method": "topk", "priority": 99},
        {"label": [_TEAM], "ended_after": _AT_1, "owner": "ada"},
        {"label": [_TEAM], "unlike": ListingState(priority=1)},
    ],
    ids=str,
)
def test_no_row_is_read_to_find_the_jobs_of_a_page(world: World, filters: dict[str, Any]) -> None:
    with selects(world) as found:
        world.jobs.find(JobFilter(**filters))
    [(statement, values)] = found
    with world.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        steps = [step[3] for step in plan if "archived=?" in step[3]]
    assert steps
    assert all("USING COVERING INDEX" in step for step in steps)


@pytest.mark.parametrize("visible_to", [None, "ada"])
def test_jobs_are_counted_by_an_index_alone(world: World, visible_to: str | None) -> None:
    with selects(world) as found:
        world.jobs.count_listed(visible_to)
    assert steps_of(world, found[0]) == ["SCAN jobs USING COVERING INDEX ix_jobs_status_list"]


def test_a_turn_changes_no_indexed_column_of_a_training_job(world: World) -> None:
    job_id = world.submit(training={"epochs": 400})
    world.train(job_id)
    indexed = {column.name for index in JobRow.__table__.indexes for column in index.columns}
    before = world.job(job_id)
    world.turn_until(lambda: world.job(job_id).progress != before.progress)
    after = world.job(job_id)
    assert after.version > before.version
    assert [name for name in indexed if getattr(before, name) != getattr(after, name)] == []


def test_a_change_at_the_head_of_the_queue_rewrites_no_job_behind_it(world: World) -> None:
    world.train(world.submit(workers={"min": 4, "max": 4}, training={"epochs": 400}))
    first = world.submit(workers={"min": 3, "max": 3})
    behind = [world.submit(workers={"min": 2, "max": 2}) for _ in range(3)]
    world.turn()
    versions = [world.job(job_id).version for job_id in behind[1:]]
    world.cancel(first)
    world.turn(3)
    assert [world.job(job_id).version for job_id in behind[1:]] == versions
    assert world.queue.first_without_capacity([world.job(behind[1])]) == behind[0]


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
        with selects(world) as found:
            metrics_response(world.database, datetime.fromtimestamp(world.clock.now, UTC))
        return len(found)

    world.train(world.submit())
    once = scrape()
    for _ in range(40):
        world.submit(workers={"min": 4, "max": 4})
    world.turn()
    assert scrape() == once


def test_a_scrape_looks_every_row_up_by_an_index(world: World) -> None:
    world.train(world.submit())
    world.submit(workers={"min": 4, "max": 4})
    world.turn()
    with selects(world) as found:
        metrics_response(world.database, datetime.fromtimestamp(world.clock.now, UTC))
    tables = set(Base.metadata.tables)
    with world.database.engine.connect() as connection:
        plans = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            for statement, values in found
        ]
        steps = [step[3] for plan in plans for step in plan]
    assert len(steps) > len(found) > 8
    assert [step for step in steps if step[:5] == "SCAN " and step.split()[1] in tables] == []


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
