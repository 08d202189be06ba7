"""Ended jobs are deleted with all that belongs to them, on request or by age and number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from accordion_service.domain.jobs.statuses import Status
from accordion_service.scheduler.deletion import RETRY_S
from accordion_service.store.tables.models import Base, DeletedJobRow, EventRow
from tests.api.team import JOBS, Team
from tests.api.world import DIGITS, World

STORAGE = "file:///mnt/checkpoints"


def rows_of(world: World, job_id: str) -> dict[str, int]:
    """Number of rows that name a job, by table."""
    found = {}
    with world.database.read() as session:
        for table in Base.metadata.sorted_tables:
            columns = [column for column in table.columns if column.name in {"job_id", "answer_id"}]
            for column in columns:
                found[table.name] = len(
                    session.execute(select(table).where(column == job_id)).all()
                )
    return found


def expire(world: World, **spec: Any) -> str:
    job_id = world.submit(**spec)
    world.finish(job_id)
    return job_id


def test_a_deleted_job_leaves_nothing_behind(client: TestClient, world: World) -> None:
    spec = {**DIGITS, "checkpoint": {"storage": STORAGE}}
    key = {"Idempotency-Key": "once"}
    job_id = client.post(JOBS, json=spec, headers=key).json()["id"]
    world.finish(job_id)
    kept = expire(world)
    assert client.delete(f"{JOBS}/{job_id}").json()["status"] == "SUCCEEDED"
    assert client.get(f"{JOBS}/{job_id}").status_code == 404
    assert client.get(f"{JOBS}/{job_id}/events").status_code == 404
    world.turn_until(lambda: bool(world.runtime.emptied), limit=5000)
    world.turn_until(lambda: sum(rows_of(world, job_id).values()) == 0, limit=5000)
    assert world.runtime.emptied == [(job_id, world.settings.storage_of(job_id), STORAGE)]
    assert rows_of(world, kept)["events"] > 0
    again = client.post(JOBS, json=spec, headers=key)
    assert (again.status_code, again.json()["id"] != job_id) == (201, True)


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED])
def test_only_an_ended_job_is_deleted(client: TestClient, world: World, status: Status) -> None:
    job_id = world.submit(training={"epochs": 400})
    if status is Status.RUNNING:
        world.train(job_id)
    if status is Status.PAUSED:
        world.pause(job_id)
    answer = client.delete(f"{JOBS}/{job_id}")
    assert (answer.status_code, world.job(job_id).status) == (409, status)
    assert "cancel it before you delete it" in answer.json()["detail"]


def test_a_deletion_is_recorded_in_the_audit_log(team: Team) -> None:
    ada = team.user("ada")
    job_id = team.submit(ada)
    team.call(ada, "POST", f"{JOBS}/{job_id}/cancel")
    assert team.call(ada, "DELETE", f"{JOBS}/{job_id}").status_code == 200
    [entry] = team.audit(subject=job_id, action="job.deleted")
    assert (entry["user"], entry["before"]["status"]) == ("ada", "CANCELLED")


def test_files_that_cannot_be_removed_are_tried_again(client: TestClient, world: World) -> None:
    job_id = expire(world)
    world.runtime.read_only = True
    client.delete(f"{JOBS}/{job_id}")
    world.turn(80)
    assert rows_of(world, job_id)["deleted_jobs"] == 1
    world.runtime.read_only = False
    world.clock.now += RETRY_S
    world.turn_until(lambda: rows_of(world, job_id)["deleted_jobs"] == 0)
    assert [row[0] for row in world.runtime.emptied] == [job_id]


@pytest.fixture
def forgetful(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service that keeps two ended jobs, and each for an hour."""
    world = World(tmp_path, database_url=database_url, job_retention_s=3600, max_ended_jobs=2)
    yield world
    world.close()


def test_ended_jobs_are_kept_by_number_and_age(forgetful: World) -> None:
    running = forgetful.submit(training={"epochs": 100_000})
    forgetful.train(running)
    jobs = [expire(forgetful, training={"epochs": 1}) for _ in range(4)]
    forgetful.clock.now += 60
    forgetful.turn_until(lambda: forgetful.jobs.get(jobs[1]) is None)
    kept = [job_id for job_id in jobs if forgetful.jobs.get(job_id) is not None]
    assert kept == jobs[2:], "the two that ended last"
    forgetful.clock.now += 3600
    forgetful.turn_until(lambda: forgetful.jobs.known(jobs[2:]) == set())
    assert forgetful.job(running).status == Status.RUNNING
    with forgetful.database.read() as session:
        assert set(session.scalars(select(EventRow.job_id))) == {running}
        assert session.scalars(select(DeletedJobRow)).all() == []
