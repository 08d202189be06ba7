"""Faults while a job on real Ray saves its state: each costs steps at most."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import CheckpointRecord, FailureRecord, Started
from tests.conftest import Require
from tests.elastic.conftest import Watch, find_failures, kill, started_jobs, wait_for
from tests.elastic.faults import Watched, job

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
"""Steps before a fault: three checkpoints are there."""


def test_a_worker_killed_while_it_writes_a_checkpoint(watch: Watch) -> None:
    watched = watch(options={"hidden": 30_000})
    watched.reach(AFTER)
    checkpoints = Path(watched.life.launch.storage, "checkpoints")
    wait_for(
        lambda: any(not (folder / "manifest.json").exists() for folder in checkpoints.glob("g*")),
        pause_s=0.005,
    )
    watched.fault()
    kill("ray::Worker")
    watched.survived("worker kill -9 in checkpoint upload")


def test_a_checkpoint_that_becomes_whole_when_the_next_group_trains(watch: Watch) -> None:
    watched = watch(options={"pace_s": 0.0, "hold_from": 21}, checkpoint={"keep": 2})
    checkpoints = Path(watched.life.launch.storage, "checkpoints")
    # the end of epoch 0, after 23 steps, is the third checkpoint; the first one goes when all is
    # written.
    wait_for(
        lambda: watched.life.look() is not None or len(watched.life.all(CheckpointRecord)) == 3
    )
    wait_for(lambda: len(list(checkpoints.iterdir())) == 2)
    [manifest] = checkpoints.glob("g*-e000001-s*/manifest.json")
    late = manifest.rename(manifest.with_suffix(".late"))
    kill("ray::Worker")
    watched.wait_for_sizes(2, 2)
    late.rename(manifest)
    kill("ray::Worker")
    watched.wait_for_sizes(2, 2, 2)
    watched.survived("checkpoint whole after its group's end")
    assert [started.epoch for started in watched.life.all(Started)] == [0, 0, 0]


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    watch: Watch, tmp_path: Path, require: Require
) -> None:
    with small_disk(require, tmp_path / "disk", megabytes=2) as disk:
        watched = watch(checkpoint={"storage": f"file://{disk}"})
        watched.reach(AFTER)
        filler = disk / "filler"

        def is_told() -> bool:
            # an older checkpoint that is removed leaves room for the next.
            fill(filler)
            return watched.life.look() is not None or any(
                "No space left" in line.text for line in watched.life.logs
            )

        wait_for(is_told, watched.life.story)
        full_at = watched.step()
        filler.unlink()
        watched.survived("disk full at checkpoint")
        assert find_failures(watched) == []
        assert watched.life.all(CheckpointRecord)[-1].step > full_at
        assert any("No space left" in line.text for line in watched.life.logs)


def test_a_full_job_directory_lets_the_job_wait_until_there_is_room(
    backend: RayBackend, tmp_path: Path, require: Require
) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    with (
        small_disk(require, tmp_path / "disk", megabytes=4) as disk,
        started_jobs(backend, disk) as start,
    ):
        watched = Watched(start(job(folder)), folder)
        watched.reach(AFTER)
        filler = disk / "filler"

        def waits() -> bool:
            # Older checkpoints that are removed leave room for some records.
            fill(filler)
            watched.life.look()
            [supervisor] = backend.supervisors()
            return (supervisor.phase, supervisor.placed) == ("waiting", ())

        wait_for(waits, watched.life.story)
        [supervisor] = backend.supervisors()
        assert "No space left on device" in supervisor.message
        filler.unlink()
        watched.survived("job directory full")
        assert all(failure.is_storage for failure in watched.life.all(FailureRecord))


@contextmanager
def small_disk(require: Require, place: Path, *, megabytes: int) -> Iterator[Path]:
    """A filesystem of this size."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        require.missing(f"no filesystem can be mounted here: {mounted.stderr.decode()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(filler: Path) -> None:
    """Take all the room there is left."""
    with suppress(OSError), filler.open("ab") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
