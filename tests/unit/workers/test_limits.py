"""How long worker processes may take: per job, and longer after each that was ended for its
silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accordion_workers.common.errors import TaskNotReady, TaskRaised
from accordion_workers.controller import hang_detection
from accordion_workers.controller.hang_detection import PREPARING_S, describe_hang
from accordion_workers.records.contract import EndRecord
from accordion_workers.spec.job import LimitsSpec, WorkersSpec
from accordion_workers.training.context import RankProgress
from accordion_workers.worker.process import Heartbeat
from tests.unit.workers.attempt_world import World as AttemptWorld
from tests.unit.workers.fake_pool import FakePool
from tests.unit.workers.fake_ray import OPEN
from tests.unit.workers.pool_world import World, pool_of


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., World]:
    return lambda **limits: pool_of(tmp_path, limits=LimitsSpec(**limits))


def test_a_process_may_be_silent_for_as_long_as_the_job_says(here: Callable[..., World]) -> None:
    world = here(answer_seconds=60)
    world.seated(1)[0].answer("heartbeat", OPEN)
    world.poll(55.0)
    assert world.numbers == [0]
    world.poll(10.0)
    assert world.numbers == []


def test_the_next_process_may_be_silent_for_twice_as_long(
    here: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_detection, "MAX_SILENCE_S", 100.0)
    world, lived = here(), []
    for _ in range(5):
        [actor] = world.hired(0)
        actor.answer("heartbeat", OPEN)
        begin = world.ray.now
        while world.numbers:
            world.poll()
        lived.append(world.ray.now - begin)
    assert lived == pytest.approx([15.0, 30.0, 60.0, 100.0, 100.0], abs=3.0)


def test_peers_wait_for_longer_than_a_process_may_be_silent(here: Callable[..., World]) -> None:
    for limit_s, timeout_s in ((15, 60.0), (120, 240.0)):
        [actor] = here(answer_seconds=limit_s).seated(1)
        assert actor.asked("train")[0].arguments[0].peer_timeout_s == timeout_s


def test_a_process_that_answers_may_load_for_as_long_as_the_job_says(
    here: Callable[..., World],
) -> None:
    world = here(start_seconds=1000)
    world.starting(prepare=OPEN)
    world.poll(max(990.0, PREPARING_S))
    assert (world.numbers, world.pool.take_failed_starts()) == ([0], [])
    world.poll(15.0)
    [failed] = world.pool.take_failed_starts()
    assert isinstance(failed.error, TaskNotReady)
    assert (
        str(failed.error)
        == "task and data were not loaded within 1000 s; raise limits.start_seconds"
    )


def test_a_group_is_idle_from_its_last_sign_of_training_on(here: Callable[..., World]) -> None:
    world = here()
    actors = world.seated(2)
    world.poll(20.0)
    assert world.pool.idle_s() == pytest.approx(20.0, abs=2.0)
    actors[1].answers["heartbeat"] = Heartbeat(
        step=0, stepped_at=0.0, compute_s=0.0, activity_count=1
    )
    world.poll(10.0)
    assert world.pool.idle_s() == pytest.approx(10.0, abs=2.0)


def test_a_group_in_which_no_rank_gets_on_is_ended_and_told_with_its_lines(world) -> None:
    here: AttemptWorld = world(least=2)
    progress = RankProgress(step=23, epoch=0, doing="epoch end")

    def hang(pool: FakePool) -> None:
        pool.hangs, pool.progress_by_rank = not pool.killed, {0: progress, 1: progress}

    here.run(hang, lambda _: None, *[hang] * 500)
    assert (here.pool.seated, here.pool.killed) == ([(0, 1), (2, 3)], [0, 1])
    [failure] = here.host.records
    assert (failure.cause, failure.step) == ("job", 23)
    assert "rank 0 is at the end of epoch 0 after 23 steps (train.py:7)" in failure.message


def test_a_job_whose_groups_hang_at_the_same_place_ends(world) -> None:
    here: AttemptWorld = world(least=2, hangs=True)
    here.pool.progress_by_rank = {0: RankProgress(step=23, epoch=0, doing="epoch end")}
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, len(here.pool.seated)) == ("TASK_RAISED", 2)
    assert "limits.step_seconds" in end.message


def test_a_clock_that_is_set_back_lengthens_no_pause(world) -> None:
    here: AttemptWorld = world(least=2)
    attempt = replace(here.attempt, now=lambda: 1e9 - 3600.0 * len(here.pool.seated))
    here.attempt = attempt
    here.run(lambda pool: pool.come_back({1: TaskRaised(3, 0, "ValueError: no")}))
    assert here.pool.seated_when[1] - here.pool.seated_when[0] < 10.0
    assert type(attempt).__dataclass_fields__["clock"].default is time.monotonic


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1, 1), (3, 3), (3.5, 3)])
def test_a_worker_computes_with_the_cpus_that_it_reserves(cpus: float, threads: int) -> None:
    assert WorkersSpec(cpus=cpus).num_threads == threads


def test_a_group_that_hangs_before_it_trains_is_told_the_limit_of_its_start() -> None:
    failure = describe_hang({0: RankProgress()}, {}, 60.0)
    assert failure.message.endswith(
        "rank 0 is at its start; if that is expected, raise limits.start_seconds"
    )
