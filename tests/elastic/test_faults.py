"""Every fault that a job has to survive on one machine, planted on real Ray: each leaves the
training as it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from tests.conftest import Require
from tests.elastic.conftest import Start, kill, processes, wait_for
from tests.elastic.faults import EVERY_STEPS, Watched, equal, job
from workers.contract import (
    CheckpointRecord,
    DesiredState,
    FailureRecord,
    ResizeRecord,
    Size,
    Started,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]
AFTER = 30
"""Steps before a fault: three checkpoints are there."""
Watch = Callable[..., Watched]
_UNDISTURBED: list[dict[str, torch.Tensor]] = []


@pytest.fixture
def watch(start: Start, tmp_path: Path) -> Watch:
    """Starts a job whose steps are written down."""

    def begin(**parts: Any) -> Watched:
        folder = tmp_path / f"steps-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        spec = job(folder, **parts)
        return Watched(start(spec, workers=spec["workers"]["max"]), folder)

    return begin


@pytest.fixture
def undisturbed(watch: Watch) -> dict[str, torch.Tensor]:
    """Where the job ends when nothing happens to it; run once."""
    if not _UNDISTURBED:
        watched = watch()
        watched.survived("none")
        _UNDISTURBED.append(watched.parameters())
        watched.life.backend.remove(watched.life.launch.job_id)
        wait_for(lambda: not processes("ray::Supervisor"))
    return _UNDISTURBED[0]


def failures(watched: Watched) -> list[tuple[str, int | None]]:
    return [(failure.cause, failure.rank) for failure in watched.life.all(FailureRecord)]


@pytest.mark.parametrize("fault", ["backward", "collective"])
def test_a_worker_killed_in_the_middle_of_a_step(
    watch: Watch, undisturbed: dict[str, torch.Tensor], fault: str
) -> None:
    watched = watch(options={"fault": fault, "fault_step": AFTER + 8, "fault_rank": 1})
    broken = watched.folder / "broken"
    wait_for(lambda: watched.life.look() is not None or broken.exists(), watched.life.story)
    wait_for(broken.read_text)
    watched.faults.append(float(broken.read_text()))
    watched.survived(f"worker kill -9 in {'a collective' if fault == 'collective' else fault}")
    assert failures(watched) == [("infrastructure", 1)]
    assert equal(watched.parameters(), undisturbed)


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


def test_a_worker_that_hangs(watch: Watch, undisturbed: dict[str, torch.Tensor]) -> None:
    watched = watch()
    watched.reach(AFTER)
    watched.fault()
    os.kill(processes("ray::Worker")[0], signal.SIGSTOP)
    watched.survived("worker hung (SIGSTOP)")
    assert equal(watched.parameters(), undisturbed)


def test_the_supervisor_killed(watch: Watch, undisturbed: dict[str, torch.Tensor]) -> None:
    watched = watch()
    watched.reach(AFTER)
    watched.fault()
    kill("ray::Supervisor")
    # a scheduler that does not see it any more starts it; Ray is restarting it already.
    watched.life.backend.start(watched.life.launch)
    watched.survived("supervisor kill -9, started again meanwhile")
    assert failures(watched) == [("infrastructure", None)]
    assert len(processes("ray::Supervisor")) == 1
    assert len(watched.life.all(Started)) == 2
    assert equal(watched.parameters(), undisturbed)


def test_a_supervisor_that_comes_back_late(
    watch: Watch, undisturbed: dict[str, torch.Tensor]
) -> None:
    watched = watch()
    watched.reach(AFTER)
    [supervisor] = processes("ray::Supervisor")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        watched.reach(AFTER + 3 * EVERY_STEPS)
        watched.life.backend.start(watched.life.launch)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert watched.survived("supervisor stopped, back after 30 steps").rolled_back == 0
    assert processes("ray::Supervisor") == [supervisor]
    assert len(watched.life.all(Started)) == 1
    assert equal(watched.parameters(), undisturbed)


def test_the_accordion_actor_killed(watch: Watch, undisturbed: dict[str, torch.Tensor]) -> None:
    watched = watch()
    watched.reach(AFTER)
    kill("ray::AccordionActor")
    assert watched.survived("Accordion actor kill -9").rolled_back == 0
    assert failures(watched) == []
    assert equal(watched.parameters(), undisturbed)


def test_two_faults_at_once(watch: Watch, undisturbed: dict[str, torch.Tensor]) -> None:
    watched = watch()
    watched.reach(AFTER)
    watched.fault()
    kill("ray::AccordionActor")
    for pid in processes("ray::Worker"):
        os.kill(pid, signal.SIGKILL)
    watched.survived("both workers and the actor at once")
    assert equal(watched.parameters(), undisturbed)


@pytest.mark.both_engines
def test_a_survivor_goes_on_alone_and_the_lost_one_is_replaced(watch: Watch) -> None:
    watched = watch(workers={"min": 1}, training={"epochs": 6})
    watched.reach(AFTER)
    watched.fault()
    kill("ray::Worker")
    watched.wait_for_sizes(1, 2)
    watched.survived("worker kill -9, survivors go on (min 1)")
    assert watched.sizes() == [2, 1, 2]
    [resize] = watched.life.all(ResizeRecord)
    assert (resize.cause, resize.old, resize.new) == ("joined", 1, 2)


@pytest.mark.both_engines
def test_people_resize_a_job_and_no_step_is_lost(watch: Watch) -> None:
    watched = watch(workers={"min": 1, "max": 3}, options={"pace_s": 0.1})
    watched.reach(AFTER)
    watched.life.order(DesiredState(version=1, size=Size(min=1, target=1)))
    watched.wait_for_sizes(1)
    watched.reach(watched.step() + EVERY_STEPS)
    watched.fault()
    watched.life.order(DesiredState(version=2, size=Size(min=1, target=3)))
    watched.wait_for_sizes(1, 3)
    assert watched.survived("resize by people, 3 to 1 to 3").rolled_back == 0
    # who is ready does not wait long for one that is not, so three may come in two steps.
    assert watched.sizes() in ([3, 1, 3], [3, 1, 2, 3])
    assert failures(watched) == []


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
        assert failures(watched) == []
        assert watched.life.all(CheckpointRecord)[-1].step > full_at
        assert any("No space left" in line.text for line in watched.life.logs)


def test_a_straggler_is_seen_by_rank(watch: Watch) -> None:
    watched = watch(options={"pace_s": 0.0, "hidden": 2048}, training={"epochs": 6})
    watched.reach(AFTER)
    slow = processes("ray::Worker")[0]
    seen: list[tuple[float, ...]] = []

    def stands_out() -> bool:
        progress = watched.life.drain().progress
        if progress is not None and len(progress.compute_s_by_rank) == 2:
            seen.append(progress.compute_s_by_rank)
        return any(max(both) > 3 * min(both) > 0 for both in seen)

    with slowed(slow):
        wait_for(stands_out)
    watched.survived("straggler slowed to a tenth")
    assert failures(watched) == []


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process runs a tenth of the time."""
    over = Event()

    def alternate() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.09)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)

    thread = Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
