"""One attempt's groups, with processes and a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError

from accordion_workers.common.errors import ProcessCrashed, StorageError, TaskRaised
from accordion_workers.controller.attempt import RETURN_S
from accordion_workers.controller.failure_policy import FIRST_PAUSE_S, MAX_PAUSE_S
from accordion_workers.controller.scaling_policy import LEAVE_PATIENCE_S
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.records.contract import DesiredState, EndRecord, PausedRecord, Size
from accordion_workers.spec.env import SecretRef
from accordion_workers.spec.objective import ObjectiveSpec
from accordion_workers.training.context import PreviousGroup, RankProgress
from tests.unit.workers.attempt_world import World
from tests.unit.workers.fake_pool import FakePool, Outcome

DEAD = ActorDiedError()


def test_an_attempt_that_nothing_disturbs_has_one_group(world: Callable[..., World]) -> None:
    here = world()
    assert here.run() == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert (here.pool.seated, here.pool.interruptions, here.pool.closed) == ([(0, 1)], [None], True)


def test_an_attempt_that_stopped_improving_has_succeeded(world: Callable[..., World]) -> None:
    here = world("ended early")
    objective = ObjectiveSpec(metric="accuracy", mode="max", patience=3)
    launch = here.attempt.launch
    spec = launch.spec.model_copy(update={"objective": objective})
    end = replace(here.attempt, launch=launch.model_copy(update={"spec": spec})).run()
    message = "training ended early: accuracy did not improve in 3 evaluations"
    assert end == EndRecord(status="SUCCEEDED", reason="STOPPED_IMPROVING", message=message)


def test_a_survivor_goes_on_alone_and_takes_the_replacement_in(world: Callable[..., World]) -> None:
    here = world()
    here.run(lambda pool: pool.come_back({0: DEAD}))
    assert here.pool.seated == [(0, 1), (1,), (1, 2)]
    assert [record.cause for record in here.host.records] == ["infrastructure"]
    assert [(note.cause, note.old, note.new) for note in here.pool.notes] == [("joined", 1, 2)]
    recovery, resize = here.pool.interruptions[1:]
    assert recovery is not None
    assert resize is not None
    assert (recovery.cause, recovery.world_size, resize.cause, resize.world_size) == (
        "recovery",
        2,
        "resize",
        1,
    )


def test_a_group_of_fixed_size_waits_for_the_replacement(world: Callable[..., World]) -> None:
    here = world(least=2)
    here.run(lambda pool: pool.come_back({1: DEAD}))
    assert here.pool.seated == [(0, 1), (0, 2)]
    assert here.pool.notes == []


def test_a_tasks_own_error_gives_the_job_new_processes(world: Callable[..., World]) -> None:
    here = world(least=2)
    here.run(lambda pool: pool.come_back({1: TaskRaised(3, 0, "ValueError: no")}))
    assert here.pool.seated == [(0, 1), (2, 3)]
    assert [record.cause for record in here.host.records] == ["job"]


def test_people_resize_a_job_in_mid_run(world: Callable[..., World]) -> None:
    here = world(most=3)

    def order(version: int, target: int) -> Callable[[FakePool], None]:
        return lambda _: setattr(
            here.host, "wanted", DesiredState(version=version, size=Size(min=1, target=target))
        )

    here.run(order(1, 1), order(2, 3))
    assert here.pool.seated == [(0, 1, 2), (0,), (0, 3, 4)]
    assert here.pool.dismissed == [1, 2]
    assert [(note.cause, note.old, note.new) for note in here.pool.notes] == [
        ("ordered", 3, 1),
        ("ordered", 1, 3),
    ]


def test_a_drained_node_is_left_before_it_goes(world: Callable[..., World]) -> None:
    here = world()
    here.run(lambda pool: pool.leave(0))
    assert here.pool.seated == [(0, 1), (1,), (1, 2)]
    assert here.pool.notes[0].cause == "leaving"
    assert 0 in here.pool.dismissed
    assert here.host.records == []


def test_a_group_that_nobody_can_take_over_from_a_drained_node_saves_and_waits(
    world: Callable[..., World],
) -> None:
    here = world(least=2, slow={2})
    stopped_at: list[float] = []

    def leave(pool: FakePool) -> None:
        pool.leave(0)
        stopped_at.append(pool.now + LEAVE_PATIENCE_S)

    def room(pool: FakePool) -> None:
        assert [(note.old, note.new) for note in pool.notes] == [(2, 0)]
        pool.slow = set()
        pool.stop(2)

    here.run(leave, lambda _: None, room)
    assert here.pool.seated == [(0, 1), (1, 3)]


def test_who_does_not_leave_a_broken_group_when_told_is_ended_and_not_blamed(
    world: Callable[..., World],
) -> None:
    here = world(least=2)
    broken_at: list[float] = []

    def breaks(pool: FakePool) -> None:
        pool.back = {0: TaskRaised(3, 0, "ValueError: no")}
        broken_at.append(pool.now)

    here.run(breaks, lambda _: None, lambda _: None)
    assert len(here.pool.left_when) == 1
    assert here.pool.left_when[0] - broken_at[0] <= 1.0
    assert here.pool.killed == [1]
    assert RETURN_S <= here.pool.killed_when[0] - broken_at[0] <= RETURN_S + 1.0
    assert [record.cause for record in here.host.records] == ["job"]


def test_processes_that_die_before_they_are_ready_end_the_job(world: Callable[..., World]) -> None:
    here = world(slow=set(range(99)))

    def fail(pool: FakePool) -> None:
        pool.failed.append(FailedStart(error=ActorDiedError()))

    here.pool.on_poll = fail
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("NO_PROGRESS", 2)


@pytest.mark.parametrize(("stop", "kind"), [("cancel", EndRecord), ("pause", PausedRecord)])
def test_an_attempt_that_is_stopped_while_nobody_trains_starts_nothing(
    world, stop: Any, kind: type[Any]
) -> None:
    here = world()
    here.host.wanted = DesiredState(version=1, stop=stop)
    assert isinstance(here.run(), kind)
    assert here.pool.seated == []


def test_what_the_attempt_waits_for_is_said(world: Callable[..., World]) -> None:
    here = world(least=2, slow={1})
    here.run(lambda pool: (pool.stop(1), pool.slow.clear()))
    assert "1 of 2 worker processes ready, 2 needed" in here.host.said


def test_the_reason_of_a_pause_is_shown_until_the_pause_is_over(
    world: Callable[..., World],
) -> None:
    here = world(*[{0: OSError(5, "Input/output error")}] * 4, None, least=2)
    here.host.makes_progress = False
    here.run()
    shown = [message for message, _ in groupby(here.host.said)]
    after = [later for earlier, later in pairwise(shown) if "Input/output error" in earlier]
    assert [message.split(" with ")[0] for message in after] == [
        f"worker group {n} starts" for n in range(2, 6)
    ]


def test_a_job_that_waits_for_workers_names_the_node_that_is_avoided(
    world: Callable[..., World],
) -> None:
    here = world(least=2, nodes={1: "b"}, slow={1, 2})
    blind = StorageError("node host-b does not see the storage of this job")
    here.run(
        lambda pool: pool.cannot_start(1, blind), lambda pool: (pool.stop(2), pool.slow.clear())
    )
    shown = next(message for message in reversed(here.host.said) if "processes ready" in message)
    assert shown.startswith(
        "1 of 2 worker processes ready, 2 needed; a worker process on node host-b cannot"
    )
    assert "does not see the storage of this job" in shown


def test_one_newcomer_that_lacks_something_does_not_end_a_job_that_has_trained(
    world: Callable[..., World],
) -> None:
    here = world(least=2)
    end = here.run(
        lambda pool: pool.come_back({1: TaskRaised(None, None, "FileNotFoundError: no data here")})
    )
    assert end == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert [(record.cause, record.final) for record in here.host.records] == [("job", False)]


def test_a_task_that_was_built_before_the_supervisor_died_can_be_built(
    world: Callable[..., World],
) -> None:
    here = world(
        {0: TaskRaised(None, None, "FileNotFoundError: no data here")}, "completed", least=2
    )
    here.host.makes_progress = False
    before = PreviousGroup(cause="recovery", world_size=2, step=7, time=0.0)
    attempt = replace(here.attempt, previous_group=before)
    assert attempt.run() == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert here.pool.interruptions[0] == before


def test_the_engine_gets_the_outcome_without_secrets(world: Callable[..., World]) -> None:
    secret = "hf_nobody-may-see-this"
    here = world({0: TaskRaised(None, None, f"ValueError: {secret} is no token")}, least=2)
    here.host.makes_progress = False
    launch = here.attempt.launch
    env = {"HF_TOKEN": SecretRef(secret="token")}
    attempt = replace(
        here.attempt,
        launch=launch.model_copy(
            update={
                "env": {"HF_TOKEN": secret},
                "spec": launch.spec.model_copy(update={"env": env}),
            }
        ),
    )
    end = attempt.run()
    assert isinstance(end, EndRecord)
    assert secret in end.message, "the journal masks what is stored"
    assert here.pool.outcome is not None
    assert "ValueError: *** is no token" in here.pool.outcome.message


def test_a_task_that_was_never_built_ends_the_job(world: Callable[..., World]) -> None:
    here = world({0: TaskRaised(None, None, "FileNotFoundError: no data")}, least=2)
    here.host.makes_progress = False
    end = here.run()
    assert isinstance(end, EndRecord)
    assert end.reason == "TASK_RAISED"
    assert [record.final for record in here.host.records] == [True]


def test_a_storage_that_is_away_spends_nothing(world: Callable[..., World]) -> None:
    here = world(least=2)
    lost = [lambda pool: pool.come_back({0: OSError(5, "Input/output error")})] * 5
    assert here.run(*lost) == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert {record.cause for record in here.host.records} == {"infrastructure"}


def test_processes_that_fail_to_start_are_replaced_after_a_growing_pause(
    world,
) -> None:
    here = world(slow=set(range(1, 99)))

    def fail(pool: FakePool) -> None:
        for number in [one.number for one in pool.processes if one.number in pool.slow]:
            pool.stop(number)
            pool.failed.append(FailedStart(error=ActorDiedError()))
        if pool.hired == 6:
            pool.slow.clear()
        if pool.seated and not pool.back:
            pool.come_back("completed")

    here.pool.on_poll = fail
    here.attempt.run()
    gaps = [later - earlier for earlier, later in pairwise(here.pool.hired_when[1:5])]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_a_newcomer_that_never_starts_does_not_disturb_the_group(
    world,
) -> None:
    here = world(slow=set(range(2, 9999)), most=3)

    def fail(pool: FakePool) -> None:
        pool.now += 60.0
        for number in [one.number for one in pool.processes if one.number in pool.slow]:
            pool.stop(number)
            pool.failed.append(FailedStart(error=ActorDiedError()))
        if pool.hired > 1200:
            pool.come_back("completed")

    here.pool.on_poll = fail
    assert here.attempt.run() == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert here.pool.seated == [(0, 1)]


def test_a_group_is_asked_to_make_room_once_however_long_it_takes(
    world: Callable[..., World],
) -> None:
    here = world(most=3, deaf=True)
    here.host.wanted = DesiredState(version=1, size=Size(min=1, target=2))
    here.run(
        lambda _: setattr(here.host, "wanted", DesiredState(version=2, size=Size(min=1, target=1))),
        lambda _: None,
        lambda pool: pool.come_back("resized"),
    )
    assert [(note.old, note.new) for note in here.pool.notes] == [(2, 1)]
    assert here.pool.seated == [(0, 1), (0,)]


def test_groups_lost_without_a_step_are_followed_by_another_after_a_growing_pause(
    world,
) -> None:
    lost: list[Outcome] = [{0: NodeDiedError(""), 1: NodeDiedError("")}] * 9
    here = world(*lost, None, start_s=0.0)
    here.host.makes_progress = False
    here.run()
    gaps = [later - earlier for earlier, later in pairwise(here.pool.seated_when)]
    least = [0.0, *(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**more) for more in range(8))]
    assert all(pause <= gap <= pause + 1.0 for pause, gap in zip(least, gaps, strict=True)), gaps


def test_processes_start_only_after_the_pause_that_follows_failed_starts(
    world,
) -> None:
    here = world(slow=set(range(99)), most=1)

    def fail(pool: FakePool) -> None:
        for one in pool.processes:
            pool.stop(one.number)
            pool.failed.append(FailedStart(error=ActorDiedError()))
        if pool.hired == 5:
            here.host.wanted = DesiredState(version=1, stop="cancel")

    here.pool.on_poll = fail
    here.attempt.run()
    gaps = [later - earlier for earlier, later in pairwise(here.pool.hired_when)]
    least = [FIRST_PAUSE_S * 2**more for more in range(4)]
    assert all(pause <= gap <= pause + 0.5 for pause, gap in zip(least, gaps, strict=True)), gaps


def test_a_group_that_began_makes_the_pause_between_hirings_short_again(
    world: Callable[..., World],
) -> None:
    here = world(slow={0, 1, 2, 4}, most=1)

    def fail(pool: FakePool) -> None:
        if pool.seated and pool.hired == 4:
            pool.come_back({0: DEAD})
        for one in [one for one in pool.processes if one.number in pool.slow]:
            pool.stop(one.number)
            pool.failed.append(FailedStart(error=ActorDiedError()))
        if len(pool.seated) == 2:
            pool.come_back("completed")

    here.pool.on_poll = fail
    here.attempt.run()
    gaps = [later - earlier for earlier, later in pairwise(here.pool.hired_when)]
    assert gaps[2] > 2 * gaps[0]
    assert gaps[-1] < 2 * gaps[0]


@pytest.mark.parametrize(("gpus", "second"), [(0, (0, 2)), (1, (2, 3))])
def test_only_without_gpus_a_process_is_kept_that_lost_its_peer(
    world, gpus: int, second: tuple[int, ...]
) -> None:
    here = world(least=2, gpus=gpus)
    here.run(lambda pool: pool.come_back({1: DEAD}))
    assert here.pool.seated == [(0, 1), second]


def test_a_leader_that_does_not_answer_costs_a_group_and_not_the_attempt(
    world: Callable[..., World],
) -> None:
    here = world(least=2, unseated=1)
    assert here.run() == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert here.pool.seated == [(0, 1), (1, 2)]
    [failure] = here.host.records
    assert failure.cause == "infrastructure"
    assert (
        failure.message
        == "the worker group did not run: rank 0's process opened no store for its group"
    )


@pytest.mark.parametrize("outcome", ["completed", "resized", "stopped"])
def test_a_group_that_lost_a_member_has_failed_whatever_the_others_say(world, outcome: str) -> None:
    here = world(least=2)
    end = here.run(lambda pool: pool.come_back({0: outcome, 1: DEAD}))
    assert (here.pool.seated, len(here.host.records)) == ([(0, 1), (0, 2)], 1)
    assert end == EndRecord(status="SUCCEEDED", reason="COMPLETED")


def test_a_group_is_over_when_all_its_members_are_back(world: Callable[..., World]) -> None:
    here = world(least=2)
    seen: list[int] = []
    here.run(
        lambda pool: pool.back.update({1: "completed"}),
        lambda pool: seen.append(len(pool.seated)),
    )
    assert (seen, here.pool.seated, here.pool.killed) == ([1], [(0, 1)], [])


def test_a_job_whose_group_stopped_for_a_pause_says_how_far_it_was(
    world: Callable[..., World],
) -> None:
    here = world()

    def pause(pool: FakePool) -> None:
        here.host.wanted = DesiredState(version=1, stop="pause")
        pool.come_back("stopped")

    end = here.run(pause)
    assert end == PausedRecord(step=here.pool.step, saved_step=0)


def test_of_members_that_say_different_things_the_first_rank_is_believed(
    world: Callable[..., World],
) -> None:
    here = world(least=2)
    here.run(lambda pool: setattr(pool, "back", {1: "completed", 0: "resized"}))
    assert here.pool.seated == [(0, 1), (0, 1)]


def test_a_job_that_is_cancelled_while_it_cannot_be_saved_says_what_is_saved(
    world: Callable[..., World],
) -> None:
    here = world()
    here.host.saved = 30

    def cancel(pool: FakePool) -> None:
        here.host.wanted = DesiredState(version=1, stop="cancel")
        pool.come_back("unsaved")

    assert (
        here.run(cancel).message
        == f"cancelled; its newest checkpoint holds 30 of {here.pool.step} steps"
    )


EXIT = ProcessCrashed("the process ended itself with os._exit(3) at task.py:9")


def exit_when_started(pool: FakePool) -> None:
    """Let every process end itself before it is ready."""
    for number, process in list(pool.members.items()):
        if process.ready_since is None:
            pool.cannot_start(number, EXIT)


def test_a_task_that_ends_its_process_while_it_loads_is_tried_twice(world) -> None:
    here: World = world(most=1, slow=set(range(99)))
    here.host.makes_progress = False
    here.pool.on_poll = exit_when_started
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("TASK_RAISED", 2)
    assert end.message.startswith("twice in a row: a worker process did not start")


def test_a_job_that_trained_outlives_processes_that_end_while_they_load(world) -> None:
    here: World = world(least=1, most=1, slow={1, 2, 3})
    end = here.run(lambda pool: pool.come_back({0: DEAD}), *[exit_when_started] * 3)
    assert isinstance(end, EndRecord)
    assert (end.status, len(here.host.records)) == ("SUCCEEDED", 4)


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (0, "no checkpoint yet; the job restarts from the beginning"),
        (30, "continues from its newest"),
    ],
)
def test_what_follows_a_failure_is_said_as_it_is(world, saved: int, told: str) -> None:
    here: World = world(least=2)
    here.host.saved = saved
    here.run(lambda pool: pool.come_back({1: TaskRaised(3, 0, "ValueError: no")}))
    assert any(told in message for message in here.host.said)


def test_a_process_that_did_not_start_is_followed_by_another_one(world) -> None:
    here: World = world(most=1, slow={0})
    here.host.makes_progress = False
    here.run(exit_when_started)
    assert any(f"{EXIT}; starting a replacement process" in message for message in here.host.said)


def test_a_group_that_waits_for_its_storage_is_shown_until_it_goes_on(world) -> None:
    made = world()

    def wait(pool: FakePool, text: str) -> None:
        pool.progress_by_rank = {
            0: RankProgress(doing="training", waiting_for=text),
            1: RankProgress(doing="training"),
        }

    made.run(lambda pool: wait(pool, "the storage is away"), lambda pool: wait(pool, ""))
    first = made.host.said.index("waits: the storage is away")
    assert made.host.said[first + 1 :] == [
        "worker group 1 continues: its storage is available again"
    ]
