"""The scheduler keeps the rows of unfinished jobs in memory: they are those of the database."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import inspect

from accordion_service.domain.jobs.statuses import Status
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.unfinished_jobs import UnfinishedJobs
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.steering import ListingChange
from tests.api.world import World

LONG = {"training": {"epochs": 4000}}


def loaded_values(row: JobRow) -> dict[str, str]:
    """Columns of a row, except those that are loaded when they are needed."""
    state = inspect(row)
    names = {column.key for column in state.mapper.column_attrs} - state.unloaded
    # As JSON: what was stored may hold tuples, which are read as lists.
    return {name: json.dumps(getattr(row, name)) for name in names}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every list of the scheduler is compared with the database; number of rows of each list."""
    counts: list[int] = []
    open_jobs, list_all = UnfinishedJobs.__init__, UnfinishedJobs.list_all
    databases: dict[UnfinishedJobs, Database] = {}

    def note_database(jobs: UnfinishedJobs, database: Database) -> None:
        open_jobs(jobs, database)
        databases[jobs] = database

    def list_and_compare(jobs: UnfinishedJobs) -> list[JobRow]:
        rows = list_all(jobs)
        stored = {row.id: loaded_values(row) for row in JobReads(databases[jobs]).unfinished()}
        assert [row.id for row in rows] == [*stored]
        for row in rows:
            known = loaded_values(row)
            common = known.keys() & stored[row.id].keys()
            assert {"version", "status", "spec", "progress", "cursor_seq"} <= common
            assert {name: known[name] for name in common} == {
                name: stored[row.id][name] for name in common
            }
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(UnfinishedJobs, "__init__", note_database)
    monkeypatch.setattr(UnfinishedJobs, "list_all", list_and_compare)
    return counts


def test_rows_in_memory_are_those_of_the_database_whatever_befalls_the_jobs(
    world: World, compared: list[int]
) -> None:
    world.scheduler.release()
    world.scheduler = world.new_scheduler()
    first, second, third = (world.submit(workers={"min": 1, "max": 2}, **LONG) for _ in range(3))
    world.train(first)
    world.override(first, level="low")
    world.turn(3)
    world.resize(first, 1, 1)
    world.lifecycle.change_listing(first, ListingChange(priority=90), check=lambda _: None)
    world.train(third)
    world.runtime.break_group(first)
    world.turn(4)
    world.pause(second)
    world.turn(4)
    world.runtime.lose(first)
    world.turn(8)
    world.resume(second)
    guest = world.runtime.enlist()
    world.turn(4)
    world.cancel(third)
    world.finish(third)
    assert max(compared) == 4
    assert {row.id for row in world.jobs.unfinished()} == {first, second, guest}


def test_a_report_that_is_rolled_back_leaves_nothing_in_memory(
    world: World, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scheduler.release()
    world.scheduler = world.new_scheduler()
    jobs = [world.submit(workers={"min": 1, "max": 1}, **LONG) for _ in range(2)]
    for job_id in jobs:
        world.train(job_id)
    before = {job_id: world.job(job_id).version for job_id in jobs}
    with monkeypatch.context() as patch:
        patch.setattr(
            "accordion_service.store.ingest.report_writes.trim_history",
            lambda *_: (_ for _ in ()).throw(ValueError("the transaction is rolled back")),
        )
        world.turn(2)
    assert {job_id: world.job(job_id).version for job_id in jobs} == before
    world.turn(2)
    assert all(world.job(job_id).version > before[job_id] for job_id in jobs)


def test_only_rows_that_have_changed_are_read_again(world: World) -> None:
    first, second = world.submit(**LONG), world.submit(**LONG)
    jobs = UnfinishedJobs(world.database)
    before = {row.id: row for row in jobs.list_all()}
    world.cancel(first)
    third = world.submit(**LONG)
    world.resize(second, 1, 1)
    after = {row.id: row for row in jobs.list_all()}
    assert [*after] == [second, third]
    assert (before[second].max_workers, after[second].max_workers) == (2, 1)
    assert [row is after[row.id] for row in jobs.list_all()] == [True, True]
    assert Status(world.job(first).status) == Status.CANCELLED
