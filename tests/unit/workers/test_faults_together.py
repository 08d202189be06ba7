"""Faults that meet: more than one cause at once, or a fault in the middle of another change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError

from accordion_workers.common.errors import TaskRaised
from accordion_workers.controller.attempt import DISAGREEMENT_S
from accordion_workers.controller.failure_policy import MAX_DEATHS, MAX_LOST_GROUPS, FailureCounts
from accordion_workers.controller.start_failures import FailedStart, judge_starts
from accordion_workers.records.contract import EndRecord, FailureRecord
from accordion_workers.training.context import Doing, RankProgress
from tests.unit.workers.attempt_world import World
from tests.unit.workers.fake_pool import BROKEN, FakePool

NO_DATA = TaskRaised(None, None, "FileNotFoundError: no data here")
COMPLETED = EndRecord(status="SUCCEEDED", reason="COMPLETED")


def test_a_newcomer_that_cannot_build_the_task_after_a_drain_does_not_end_the_job(
    world: Callable[..., World],
) -> None:
    here = world(least=1, most=1, slow={1}, nodes={1: "b"})

    def fail(pool: FakePool) -> None:
        pool.cannot_start(1, NO_DATA)

    assert here.run(lambda pool: pool.leave(0), lambda _: None, fail) == COMPLETED
    assert here.pool.seated == [(0,), (2,)]
    assert here.pool.avoided[-1] == {"b"}


def test_a_rank_that_hangs_after_its_peer_returned_is_ended(world: Callable[..., World]) -> None:
    here = world(least=2)
    finished = RankProgress(step=46, doing="finished")

    def hang(pool: FakePool) -> None:
        pool.hangs, pool.progress_by_rank = not pool.killed, {0: finished, 1: finished}
        if pool.hangs:
            pool.back = {1: "completed"}

    assert here.run(hang, *[lambda _: None] * 500) == COMPLETED
    assert (here.pool.seated, here.pool.killed) == ([(0, 1), (2, 3)], [0, 1])
    assert "limits.step_seconds" in here.host.records[0].message


def test_a_process_that_died_while_it_started_leaves_the_task_untried() -> None:
    failed = [
        FailedStart(error=NO_DATA, node="a", host="a"),
        FailedStart(error=NodeDiedError(""), node="b", host="b"),
    ]
    for order in (failed, failed[::-1]):
        verdict = judge_starts(order, [], has_trained=False)
        assert verdict is not None
        assert verdict.fatal is None
        assert verdict.failure.cause == "infrastructure"


def test_a_spot_fleet_that_leaves_checkpoints_may_lose_nodes_for_ever(
    world: Callable[..., World],
) -> None:
    here = world(least=2)
    gone = {0: NodeDiedError(""), 1: NodeDiedError("")}
    assert here.run(*[lambda pool: pool.come_back(gone)] * (3 * MAX_LOST_GROUPS)) == COMPLETED
    assert len(here.host.records) == 3 * MAX_LOST_GROUPS


def test_processes_that_die_on_stable_nodes_without_a_checkpoint_end_the_job(
    world: Callable[..., World],
) -> None:
    here = world({1: ActorDiedError()}, least=2)
    here.host.makes_progress = False
    end = here.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, len(here.pool.seated)) == ("NO_PROGRESS", MAX_DEATHS)


def test_a_supervisor_that_starts_again_knows_how_often_processes_died() -> None:
    died = FailureRecord(cause="infrastructure", rank=1, message="gone", process_died=True)
    lost = died.model_copy(update={"process_died": False})
    assert FailureCounts.restore([died, died, lost, died]).deaths == 3


@pytest.mark.parametrize("doing", ["epoch end", "finished"])
def test_ranks_that_disagree_end_the_job_without_a_timeout(world, doing: Doing) -> None:
    here: World = world(least=2)
    left, waiting = RankProgress(step=18, doing=doing), RankProgress(step=18, doing="training")

    def part(pool: FakePool) -> None:
        pool.progress_by_rank = {0: waiting, 1: left}
        pool.back = {1: "completed"} if doing == "finished" else {}

    end = here.run(part, *[lambda _: None] * 500)
    assert isinstance(end, EndRecord)
    assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
    assert "rank 1 left its loop after step 17 (epoch 0), and rank 0 waits" in end.message
    assert (here.pool.seated, here.pool.now < 20.0) == ([(0, 1)], True)


def test_ranks_that_agree_again_train_on(world: Callable[..., World]) -> None:
    here = world(least=2)
    old, training = (RankProgress(step=18, doing=doing) for doing in ("finished", "training"))

    def poll(pool: FakePool) -> None:
        is_old = 1.0 < pool.now < 1.0 + DISAGREEMENT_S / 2
        pool.progress_by_rank = {0: training, 1: old if is_old else training}
        if pool.now > 10.0:
            pool.come_back("completed")

    here.pool.on_poll = poll
    assert here.attempt.run() == COMPLETED


def test_ranks_whose_disagreement_broke_a_collective_get_no_second_try(world) -> None:
    here: World = world(least=2)
    training, left = (RankProgress(step=18, doing=doing) for doing in ("training", "finished"))

    def part(pool: FakePool) -> None:
        pool.progress_by_rank = {0: training, 1: left}
        pool.back = {0: BROKEN, 1: "completed"}

    end = here.run(part)
    assert isinstance(end, EndRecord)
    assert (end.reason, len(here.pool.seated)) == ("TASK_RAISED", 1)
