"""Checkpoints of ended jobs that are no longer kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_service.runtime.ray_backend import RayBackend
from accordion_service.scheduler.checkpoints import RETRY_S, choose_kept
from accordion_service.store.tables.models import AuditRow, CheckpointRow
from accordion_service.store.writes.steering import accept_any
from accordion_service.views.jobs import checkpoint_views
from tests.api.world import World

DAY_S = 86_400.0
FILES = {"g1-e1": True, "g1-e2": True, "g1-e3": True, "g1-e4": False}


def end_job(world: World) -> str:
    job_id = world.submit(training={"epochs": 1})
    world.finish(job_id)
    world.runtime.checkpoint_files[job_id] = dict(FILES)
    return job_id


def saved(job_id: str, name: str, step: int) -> CheckpointRow:
    numbers = {"attempt": 1, "generation": 1, "epoch": step, "size_bytes": 1}
    return CheckpointRow(job_id=job_id, name=name, step=step, seconds=1.0, time=step, **numbers)


def wait_for_removal(world: World, job_id: str) -> None:
    world.turn_until(lambda: world.job(job_id).checkpoints_removed_at is not None, limit=5000)


def test_an_old_ended_job_keeps_only_its_newest_checkpoint(
    tmp_path: Path, database_url: str
) -> None:
    world = World(tmp_path, database_url=database_url, checkpoint_retention_s=DAY_S)
    old = end_job(world)
    with world.database.write() as session:
        session.add_all(saved(old, name, step) for step, name in enumerate(FILES))
    world.runtime.read_only = True
    world.clock.now += DAY_S
    recent = end_job(world)
    world.turn(20)
    assert world.job(old).checkpoints_removed_at is None
    world.runtime.read_only = False
    world.clock.now += RETRY_S
    wait_for_removal(world, old)
    assert world.runtime.checkpoint_files == {old: {"g1-e3": True}, recent: FILES}
    newest = world.history.events(old, after=0)[-1]
    assert (newest.type, newest.data["kept"]) == ("retention", ["g1-e3"])
    views = checkpoint_views(world.job(old), world.history.checkpoints(old))
    assert [view.name for view in views if view.kept] == ["g1-e3"]
    with world.database.read() as session:
        [entry] = session.query(AuditRow).where(AuditRow.action == "job.checkpoints_removed")
    assert (entry.user, entry.after) == ("retention", {"checkpoints": ["g1-e3"]})
    world.close()


def end_job_that_keeps_none(folder: Path, database_url: str) -> tuple[World, str]:
    """A world whose retention keeps no checkpoint, and an ended job in it that has some."""
    world = World(
        folder,
        database_url=database_url,
        checkpoint_retention_s=DAY_S,
        ended_checkpoints="none",
    )
    job_id = world.submit(training={"epochs": 400})
    world.lifecycle.cancel(job_id, accept_any, grace_s=1.0)
    world.runtime.checkpoint_files[job_id] = dict(FILES)
    with world.database.write() as session:
        session.add_all(saved(job_id, name, step) for step, name in enumerate(FILES))
    return world, job_id


def test_without_a_kept_checkpoint_all_are_removed_and_again_after_a_retry(
    tmp_path: Path, database_url: str
) -> None:
    world, job_id = end_job_that_keeps_none(tmp_path, database_url)
    assert world.history.saved_step(job_id) == 3
    world.clock.now += DAY_S + 1
    wait_for_removal(world, job_id)
    assert world.runtime.checkpoint_files[job_id] == {}
    assert world.history.saved_step(job_id) == 0
    world.lifecycle.retry(job_id, accept_any)
    assert world.job(job_id).checkpoints_removed_at is None
    world.close()


def test_a_job_that_is_retried_during_the_removal_does_not_wait_for_its_checkpoints(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, job_id = end_job_that_keeps_none(tmp_path, database_url)
    remove = world.runtime.remove_checkpoints
    steps: list[int] = []

    def retry_first(*place: Any, names: Any) -> None:
        world.lifecycle.retry(job_id, accept_any)
        steps.append(world.history.saved_step(job_id))
        remove(*place, names=names)

    monkeypatch.setattr(world.runtime, "remove_checkpoints", retry_first)
    world.clock.now += DAY_S + 1
    world.turn_until(lambda: not world.runtime.checkpoint_files[job_id], limit=5000)
    assert steps == [0]
    assert world.job(job_id).checkpoints_removed_at is None
    world.close()


def row(name: str, step: int, objective: float | None, generation: int = 1) -> CheckpointRow:
    return CheckpointRow(name=name, step=step, objective=objective, generation=generation)


@pytest.mark.parametrize(("mode", "best"), [("min", "b"), ("max", "a"), ("", None)])
def test_the_newest_and_the_best_checkpoint_are_kept(mode: str, best: str | None) -> None:
    rows = [
        row("0", 0, 9.0),
        row("a", 1, 0.9),
        row("b", 2, 0.1),
        row("c", 3, 0.5),
        row("d", 4, None),
    ]
    found = {"a": True, "b": True, "c": True, "d": True, "z": False}
    assert choose_kept(found, rows, mode=mode) == {"d", *([best] if best else [])}


def test_the_newest_reported_checkpoint_is_kept_beside_a_late_one() -> None:
    rows = [row("g1-s1", 1, None)]
    assert choose_kept({"g1-s1": True, "g1-s2": True}, rows, mode="") == {"g1-s1", "g1-s2"}
    assert choose_kept({}, rows, mode="min") == set()


@pytest.mark.parametrize("url", [None, "URL"])
def test_checkpoints_are_listed_and_removed_on_the_storage(tmp_path: Path, url: str | None) -> None:
    storage = tmp_path / "j"
    root = storage / "checkpoints" if url is None else tmp_path / "shared" / "j"
    for name in ("old", "new", "torn"):
        (root / name).mkdir(parents=True)
        (root / name / "model.pt").write_bytes(b"x")
    for name in ("old", "new"):
        (root / name / "manifest.json").write_text("{}")
    backend, place = (
        RayBackend(address=None),
        ("j", str(storage), url and f"file://{tmp_path}/shared"),
    )
    assert backend.list_checkpoints(*place) == {"old": True, "new": True, "torn": False}
    backend.remove_checkpoints(*place, names=["old", "torn"])
    assert backend.list_checkpoints(*place) == {"new": True}
