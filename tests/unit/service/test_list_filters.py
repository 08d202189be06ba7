"""Filters of lists: what they find, and the index that serves each."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, insert, text

from service.store.database import Database
from service.store.list_filters import find_successor
from service.store.models import JobRow
from service.store.repository import JobFilter, Repository

JOBS = 3000
RARE: dict[str, Any] = {
    "name": "needle-1",
    "status": "RUNNING",
    "reason": "NO_STEPS",
    "desired": "PAUSE",
    "priority": 99,
    "workers": 7,
    "task": "cifar-resnet18",
    "method": "topk",
    "policy": "fixed",
    "cloned_from": "c" * 36,
    "started_at": 90_000.5,
    "ended_at": 95_000.5,
    "owner": "ada",
}
"""Values of the only job that each filter finds."""
FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"name": "needle-1"}, "name"),
    ({"name_prefix": "needle"}, "name"),
    ({"statuses": ["RUNNING"]}, "status"),
    ({"reasons": ["NO_STEPS", "LOST"]}, "reason"),
    ({"desired": ["PAUSE"]}, "desired"),
    ({"priority": 99}, "priority"),
    ({"workers": 7}, "workers"),
    ({"task": "cifar-resnet18"}, "task"),
    ({"method": "topk"}, "method"),
    ({"policy": "fixed"}, "policy"),
    ({"cloned_from": "c" * 36}, "cloned_from"),
    ({"started_after": 90_000.5}, "started_at"),
    ({"started_after": 90_000.0, "started_before": 90_001.0}, "started_at"),
    ({"ended_after": 95_000.5}, "ended_at"),
    ({"ended_after": 95_000.0, "ended_before": 95_001.0}, "ended_at"),
    ({"owner": "ada"}, "owner"),
]
"""Filters, and the column whose index serves each."""


def make_rows() -> list[dict[str, Any]]:
    """Rows that differ in age, and in the middle one with rare values."""
    common = {
        "name": "sweep-1",
        "status": "SUCCEEDED",
        "reason": "COMPLETED",
        "desired": "RUN",
        "priority": 50,
        "workers": 0,
        "task": "digits-mlp",
        "method": "powersgd",
        "policy": "two_level",
        "cloned_from": None,
        "owner": "bob",
        "spec": {"note": "x" * 500},
        "labels": {},
        "min_workers": 1,
        "max_workers": 2,
    }
    rows = []
    for number in range(JOBS):
        times = {"created_at": number, "started_at": number + 1.0, "ended_at": number + 2.0}
        rare = RARE if number == JOBS // 2 else {}
        rows.append({"id": f"{number:036d}", **common, **times, **rare})
    return rows


def list_with_plan(database: Database, wanted: JobFilter) -> tuple[list[JobRow], str]:
    """Read a list; return its jobs, and how the database finds them."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        seen.append((statement, values))

    event.listen(database.engine, "before_cursor_execute", note)
    found = Repository(database).jobs(wanted)
    event.remove(database.engine, "before_cursor_execute", note)
    # The first statement may count the jobs of a range.
    [*_, (statement, values)] = [each for each in seen if each[0].startswith("SELECT")]
    is_sqlite = database.engine.dialect.name == "sqlite"
    with database.engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        steps = connection.exec_driver_sql(f"{explain} {statement}", values)
        return found, "\n".join(str(step[-1]) for step in steps)


@pytest.mark.each_database
def test_each_filter_finds_a_rare_job_by_its_own_index(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as session:
        session.execute(insert(JobRow), make_rows())
    with database.connect_writer() as connection:
        connection.execute(text("ANALYZE" if "postgresql" in database_url else "SELECT 1"))
    wrong = {}
    for given, column in FILTERS:
        for more in ({}, {"archived": None}, {"visible_to": "ada"}):
            found, plan = list_with_plan(database, JobFilter(**given, **more))
            is_served = f"ix_jobs_{column}_archived" in plan and "Seq Scan on jobs" not in plan
            if [job.name for job in found] != ["needle-1"] or not is_served:
                wrong[str((given, more))] = plan
    database.close()
    assert wrong == {}


def test_a_list_with_several_filters_reads_only_its_index(database_url: str) -> None:
    database = Database(database_url)
    filters = {name: value for given, _ in FILTERS for name, value in given.items()}
    found, plan = list_with_plan(database, JobFilter(**filters, kind="job", visible_to="ada"))
    database.close()
    assert found == []
    assert "USING COVERING INDEX ix_jobs_list (archived=?" in plan


@pytest.mark.each_database
def test_the_start_of_a_name_is_compared_by_characters(database_url: str) -> None:
    database = Database(database_url)
    names = ["a", "A", "a_b", "a%b", "ab", "b", "a\uffff", "a\U0010ffff", "\U0010ffff", "é"]
    rows = [{**row, "name": name} for row, name in zip(make_rows(), names, strict=False)]
    with database.write() as session:
        session.execute(insert(JobRow), rows)
    repository = Repository(database)
    for prefix in [*names, "a\ud7ff"]:
        found = {job.name for job in repository.jobs(JobFilter(name_prefix=prefix))}
        assert found == {name for name in names if name.startswith(prefix)}, prefix
    database.close()


@pytest.mark.parametrize(
    ("prefix", "successor"),
    [("ab", "ac"), ("a\U0010ffff", "b"), ("a\ud7ff", "a\ue000"), ("\U0010ffff", None)],
)
def test_the_successor_of_a_prefix_follows_all_that_start_with_it(
    prefix: str, successor: str | None
) -> None:
    assert find_successor(prefix) == successor
