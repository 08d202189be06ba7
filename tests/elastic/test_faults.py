"""Every fault that a job has to survive on one machine, planted on real Ray: each leaves the
training as it was.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from accordion_workers.records.contract import CheckpointRecord, Started
from tests.elastic.conftest import Watch, find_failures, kill, processes, wait_for
from tests.elastic.faults import EVERY_STEPS, Watched, equal

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
"""Steps before a fault: three checkpoints are there."""
COMPRESSED: dict[str, Any] = {
    "compression": {},
    "policy": {"window": {"epochs": 1}},
    "training": {"lr_decay": {"at": [4]}},
}
"""Parts of a job whose levels change: its end depends on residuals and on the detector's state."""
EPOCH_START, ROUND, ROUND_START = 23, 8, 31
"""First step of epoch 1, local steps of a round, and the first of the second round of epoch 1."""
ROUNDS: dict[str, Any] = {
    "workers": {"min": 2, "max": 3},
    "checkpoint": {"every_steps": 1000, "every_epochs": 1000},
}
"""Parts of a job that saves no checkpoint before its end, unless a replacement joins."""
_UNDISTURBED: list[Watched] = []


@pytest.fixture
def undisturbed(watch: Watch) -> Watched:
    """The compressed job when nothing happens to it; run once."""
    if not _UNDISTURBED:
        watched = watch(**COMPRESSED)
        watched.survived("none")
        levels = {level for *_, by_layer, _ in watched.life.training for level in by_layer.values()}
        assert {"low", "high"} <= levels
        watched.life.backend.remove(watched.life.launch.job_id)
        wait_for(lambda: not processes("ray::Supervisor"))
        _UNDISTURBED.append(watched)
    return _UNDISTURBED[0]


def assert_trained_alike(watched: Watched, undisturbed: Watched) -> None:
    """Parameters, losses, levels and regimes are those of the undisturbed job, bit for bit."""
    assert watched.life.training == undisturbed.life.training
    assert equal(watched.parameters(), undisturbed.parameters())


@pytest.mark.parametrize("fault", ["backward", "collective"])
def test_a_worker_killed_in_the_middle_of_a_step(
    watch: Watch, undisturbed: Watched, fault: str
) -> None:
    options = {"fault": fault, "fault_step": AFTER + 8, "fault_rank": 1}
    watched = watch(**COMPRESSED, options=options)
    broken = watched.folder / "broken"
    wait_for(lambda: watched.life.look() is not None or broken.exists(), watched.life.story)
    wait_for(broken.read_text)
    watched.faults.append(float(broken.read_text()))
    watched.survived(f"worker kill -9 in {'a collective' if fault == 'collective' else fault}")
    assert find_failures(watched) == [("infrastructure", 1)]
    assert watched.has_whole_history()
    assert_trained_alike(watched, undisturbed)


@pytest.mark.parametrize(
    ("overlap", "killed_in", "again_from"),
    [(0, ROUND_START + 4, ROUND_START), (2, ROUND_START, EPOCH_START)],
)
def test_a_worker_killed_in_a_round_costs_the_steps_since_all_were_equal(
    watch: Watch, overlap: int, killed_in: int, again_from: int
) -> None:
    options = {"fault": "backward", "fault_step": killed_in, "fault_rank": 1}
    local = {"low": ROUND, "overlap": overlap}
    watched = watch(**ROUNDS, local_steps=local, options=options)
    broken = watched.folder / "broken"
    wait_for(lambda: watched.life.look() is not None or broken.exists(), watched.life.story)
    wait_for(broken.read_text)
    watched.faults.append(float(broken.read_text()))
    beside = ", beside the exchange of the one before" if overlap else ""
    watched.survived(f"worker kill -9 in a round of local steps{beside}")
    assert find_failures(watched) == [("infrastructure", 1)]
    again = watched.life.all(Started)[1]
    assert (again.world_size, again.step, again.from_memory) == (2, again_from, True)
    assert all(saved.step > again_from for saved in watched.life.all(CheckpointRecord))
    assert not [line.text for line in watched.life.logs if "drifted" in line.text]


def test_a_worker_that_hangs(watch: Watch, undisturbed: Watched) -> None:
    watched = watch(**COMPRESSED)
    watched.reach(AFTER)
    watched.fault()
    os.kill(processes("ray::Worker")[0], signal.SIGSTOP)
    watched.survived("worker hung (SIGSTOP)")
    assert_trained_alike(watched, undisturbed)


def test_the_supervisor_killed(watch: Watch, undisturbed: Watched) -> None:
    watched = watch(**COMPRESSED)
    watched.reach(AFTER)
    watched.fault()
    kill("ray::Supervisor")
    # a scheduler that does not see it any more starts it; Ray is restarting it already.
    watched.life.backend.start(watched.life.launch)
    watched.survived("supervisor kill -9, started again meanwhile")
    assert find_failures(watched) == [("infrastructure", None)]
    assert len(processes("ray::Supervisor")) == 1
    assert len(watched.life.all(Started)) == 2
    assert_trained_alike(watched, undisturbed)


def test_a_supervisor_that_comes_back_late(watch: Watch, undisturbed: Watched) -> None:
    watched = watch(**COMPRESSED)
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
    assert_trained_alike(watched, undisturbed)


def test_the_accordion_actor_killed(watch: Watch, undisturbed: Watched) -> None:
    watched = watch(**COMPRESSED)
    watched.reach(AFTER)
    kill("ray::AccordionActor")
    assert watched.survived("Accordion actor kill -9").rolled_back == 0
    assert find_failures(watched) == []
    assert watched.has_whole_history()
    assert_trained_alike(watched, undisturbed)


def test_two_faults_at_once(watch: Watch, undisturbed: Watched) -> None:
    watched = watch(**COMPRESSED)
    watched.reach(AFTER)
    watched.fault()
    kill("ray::AccordionActor")
    for pid in processes("ray::Worker"):
        os.kill(pid, signal.SIGKILL)
    watched.survived("both workers and the actor at once")
    assert_trained_alike(watched, undisturbed)


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
    assert find_failures(watched) == []


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
