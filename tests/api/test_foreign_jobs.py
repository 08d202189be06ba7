"""Several databases with one cluster: no scheduler touches jobs of another installation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Status
from accordion_service.scheduler.foreign_jobs import CONFLICT_S
from accordion_service.store.migrations import upgrade
from tests.api.world import World
from tests.postgres import Postgres


@pytest.fixture
def beside(world: World, tmp_path: Path, empty_url: str) -> Iterator[Callable[..., World]]:
    """Opens another service on the cluster of `world`, by default with a database of its own."""
    worlds: list[World] = []

    def open_world(url: str = empty_url) -> World:
        worlds.append(World(tmp_path / "other", database_url=url))
        worlds[-1].runtime, worlds[-1].clock = world.runtime, world.clock
        worlds[-1].scheduler = worlds[-1].new_scheduler()
        return worlds[-1]

    yield open_world
    for opened in worlds:
        opened.close()


@pytest.fixture
def backup(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], str]]:
    """Copies the database as it is now; gives the URL of the copy."""
    with ExitStack() as copies:

        def copy() -> str:
            world.database.close()
            if world.settings.database.startswith("postgresql"):
                server: Postgres = request.getfixturevalue("postgres")
                url = server.copy_database(world.settings.database)
                copies.callback(server.drop_database, url)
                return url
            file = shutil.copy(world.settings.home / "accordion.db", tmp_path / "copy.db")
            return f"sqlite:///{file}"

        yield copy


def turn_both(world: World, copy: World) -> None:
    """Let two schedulers of one installation turn for longer than the claim of a predecessor
    lasts.
    """
    for _ in range(int(2 * CONFLICT_S)):
        world.clock.now += 1.0
        world.turn()
        copy.scheduler.run_once()


def test_scheduler_with_another_database_leaves_running_jobs_alone(
    world: World, beside, client: TestClient
) -> None:
    world.train(job_id := world.submit(training={"epochs": 300}))
    other = beside()
    world.scheduler.release()
    other.turn(20)
    assert world.runtime.removed == []
    assert "1 job that this database does not know" in other.cluster.get().message
    world.turn()
    assert world.job(job_id).attempt == 1


def test_job_of_another_installation_is_reported_in_readyz_and_cluster_view(
    world: World, client: TestClient
) -> None:
    world.runtime.others = {"ab12": 2}
    world.turn()
    message = "left alone: 2 jobs of other installations (ab12: 2)"
    assert client.get("/readyz").json()["checks"]["ray"] == {
        "ok": True,
        "message": f"responds; {message}",
    }
    assert client.get("/api/v1/cluster").json()["message"] == message


def test_job_submitted_after_the_backup_survives_its_restoration(
    world: World, beside, backup
) -> None:
    world.turn()
    url = backup()
    world.train(job_id := world.submit(training={"epochs": 300}))
    world.scheduler.release()
    beside(url).turn(10)
    assert world.runtime.jobs[job_id].alive


def test_scheduler_on_a_copied_database_is_refused_while_the_original_lives(
    world: World, beside, backup
) -> None:
    world.train(job_id := world.submit(training={"epochs": 300}))
    copy = beside(backup())
    copy.cancel(job_id)
    turn_both(world, copy)
    assert world.runtime.removed == []
    assert world.job(job_id).status == Status.RUNNING
    assert "from another database" in copy.cluster.get().message


def test_refused_scheduler_does_not_use_a_pause_of_the_other_one(
    world: World, beside, backup
) -> None:
    world.train(world.submit(training={"epochs": 300}))
    copy = beside(backup())
    turn_both(world, copy)
    for _ in range(25):
        copy.clock.now += 1.0
        copy.turn()
    assert not copy.cluster.get().reachable
    assert world.runtime.removed == []


def test_installation_keeps_its_id_when_tables_are_migrated_again(world: World) -> None:
    before = world.cluster.installation()
    upgrade(world.settings.database)
    assert world.cluster.installation() == before
    assert len(before) == 12
