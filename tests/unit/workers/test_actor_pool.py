"""Worker processes as the supervisor sees them, over a Ray whose actors answer what the
test says.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, RayTaskError

from accordion_workers.common.errors import DataFetchError, ProcessCrashed, ProcessLost, TaskRaised
from accordion_workers.controller.actor_pool import DRAINING_CHECK_S, KILLED, PEER_TIMEOUT_S
from accordion_workers.controller.hang_detection import HEARTBEAT_S, PREPARING_S
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.records.contract import ResizeRecord
from accordion_workers.spec.job import LimitsSpec
from accordion_workers.spec.workers import WorkersSpec
from accordion_workers.training.context import RankProgress
from accordion_workers.worker.exit_notes import exit_note_path
from accordion_workers.worker.process import Heartbeat, ProcessLocation
from tests.unit.workers.fake_ray import DEAD, HERE, ITSELF, OPEN, THERE
from tests.unit.workers.pool_world import World, pool_of

HUNG_S = LimitsSpec().answer_seconds
NODE_DIED = ActorDiedError()
NODE_DIED.error_msg = "The actor died because its node has died. The actor never ran."
NOTE = ResizeRecord(cause="joined", old=1, new=2, step=0, message="one more")


@pytest.fixture
def here(tmp_path: Path) -> World:
    return pool_of(tmp_path)


def raised(error: Exception) -> RayTaskError:
    return RayTaskError("method", "traceback", error).as_instanceof_cause()


def test_a_process_is_ready_when_it_is_placed_and_prepared(here: World) -> None:
    [actor] = here.hired(0)
    assert here.ready == [0]
    assert [call.method for call in actor.calls][:2] == ["locate", "prepare"]


def test_a_process_fetches_data_before_it_prepares(tmp_path: Path) -> None:
    here = pool_of(
        tmp_path, data={"train": "s3://bucket/train"}, limits=LimitsSpec(start_seconds=5)
    )
    actor = here.starting(fetch_data=OPEN, prepare=OPEN)
    here.poll(HUNG_S + 1.0)
    assert [call.method for call in actor.calls][:2] == ["locate", "fetch_data"]
    assert here.numbers == [0], "limits.start_seconds does not count it"
    actor.answer("fetch_data", None)
    here.poll()
    assert len(actor.asked("prepare")) == 1
    actor.answer("prepare", None)
    here.poll()
    assert here.ready == [0]


def test_data_that_cannot_be_fetched_are_a_failed_start(tmp_path: Path) -> None:
    here = pool_of(tmp_path, data={"train": "s3://bucket/train"})
    here.starting(fetch_data=raised(DataFetchError("there is nothing at s3://bucket/train")))
    here.poll()
    [failed] = here.pool.take_failed_starts()
    assert (type(failed.error), failed.node, here.numbers) == (DataFetchError, HERE, [])


@pytest.mark.parametrize("step", ["install_packages", "prepare"])
def test_a_directory_that_a_starting_process_cannot_read_is_told_as_such(
    tmp_path: Path, step: str
) -> None:
    here = pool_of(tmp_path, pip=("acc-alpha",))
    away = OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    here.starting(**{step: raised(away)})
    here.poll()
    [failed] = here.pool.take_failed_starts()
    assert (failed.error, failed.node) == (away, HERE)


def test_a_process_that_finds_no_room_is_waited_for(here: World) -> None:
    here.starting(locate=OPEN)
    here.poll(2 * PREPARING_S)
    assert (here.numbers, here.ready, here.pool.take_failed_starts()) == ([0], [], [])


def test_a_process_that_hangs_is_ended_and_comes_back_as_lost(here: World) -> None:
    actors = here.seated(2)
    actors[1].answer("heartbeat", OPEN)
    here.poll(HUNG_S - 1.0)
    assert (here.ray.signals, here.pool.results()) == ([], {})
    here.poll(3.0)
    assert (here.ray.signals, here.ray.killed, here.numbers) == ([(ITSELF, 1)], [actors[1]], [0])
    assert isinstance(here.pool.results()[1], ProcessLost)
    assert here.pool.take_failed_starts() == []


def test_a_process_that_hangs_on_another_machine_is_ended_there(here: World) -> None:
    here.starting(locate=ProcessLocation(node=THERE, host="10.0.0.1", pid=77), heartbeat=OPEN)
    here.poll(HUNG_S + 3.0)
    assert (here.ray.signals, here.numbers) == ([(THERE, 77)], [])


def test_a_process_that_hangs_while_preparing_gets_longer_and_is_a_failed_start(
    here: World,
) -> None:
    actor = here.starting(prepare=OPEN, heartbeat=OPEN)
    here.poll(PREPARING_S - 1.0)
    assert (here.numbers, here.ray.signals) == ([0], [])
    here.poll(3.0)
    assert (here.numbers, here.ray.signals, here.ray.killed) == ([], [(ITSELF, 0)], [actor])
    assert [type(one.error) for one in here.pool.take_failed_starts()] == [ProcessLost]
    assert here.pool.take_failed_starts() == []


def test_a_process_that_prepares_for_long_and_answers_is_waited_for(here: World) -> None:
    actor = here.starting(prepare=OPEN)
    here.poll(2 * PREPARING_S)
    assert (here.numbers, here.ready, here.pool.take_failed_starts()) == ([0], [], [])
    actor.answer("prepare", None)
    here.poll()
    assert here.ready == [0]


def test_who_was_silent_while_it_prepared_is_not_blamed_for_it_when_it_is_ready(
    here: World,
) -> None:
    actor = here.starting(prepare=OPEN, heartbeat=OPEN)
    here.poll(PREPARING_S - 5.0)
    actor.answer("prepare", None)
    here.poll(HUNG_S - 1.0)
    assert here.ready == [0]
    here.poll(3.0)
    assert here.numbers == []


def test_a_silence_that_ended_counts_no_more(here: World) -> None:
    [actor] = here.hired(0)
    for _ in range(3):
        actor.answer("heartbeat", OPEN)
        here.poll(HUNG_S - 2.0)
        actor.answer("heartbeat", Heartbeat(step=0, stepped_at=0.0, compute_s=0.0))
        here.poll(2 * HEARTBEAT_S)
    assert here.numbers == [0]


def test_a_supervisor_that_stood_still_itself_blames_nobody_for_the_silence(here: World) -> None:
    [actor] = here.hired(0)
    actor.answer("heartbeat", OPEN)
    here.poll()
    here.ray.now += 10 * HUNG_S
    here.poll()
    assert here.numbers == [0]


def test_a_sign_of_life_is_asked_for_once_a_second_and_never_twice_at_a_time(here: World) -> None:
    [actor] = here.hired(0)
    before = len(actor.asked("heartbeat"))
    here.poll(10 * HEARTBEAT_S)
    assert 8 <= len(actor.asked("heartbeat")) - before <= 10
    actor.answer("heartbeat", OPEN)
    here.poll(2 * HEARTBEAT_S)
    before = len(actor.asked("heartbeat"))
    here.poll(HUNG_S / 2)
    assert len(actor.asked("heartbeat")) == before


def test_who_asks_tells_every_member_what_the_others_computed(here: World) -> None:
    actors = here.hired(0, 1, 2)
    here.pool.start_group((2, 0), 1, None)
    for seconds, actor in enumerate(actors):
        actor.made(1, compute_s=float(seconds))
    here.poll(4 * HEARTBEAT_S)
    assert [actor.asked("heartbeat")[-1].arguments for actor in actors] == [((2.0, 0.0),)] * 3


def test_members_come_back_by_rank_with_what_they_say_or_with_what_ended_them(here: World) -> None:
    actors = here.hired(0, 1, 2, 3)
    here.pool.start_group((3, 0, 2), 1, None)
    actors[3].answer("train", "completed")
    actors[0].die()
    here.poll()
    assert here.pool.results() == {0: "completed", 1: DEAD}
    error = TaskRaised(1, 0, "ValueError: no")
    actors[2].answer("train", raised(error))
    here.poll()
    assert here.pool.results() == {0: "completed", 1: DEAD, 2: error}
    assert (here.numbers, here.ray.killed, here.pool.take_failed_starts()) == (
        [1, 2, 3],
        [actors[0]],
        [],
    )


def test_a_process_that_is_lost_while_it_starts_is_a_failed_start_however_far_it_was(
    here: World,
) -> None:
    for method in ("locate", "prepare", "heartbeat"):
        here.starting(**{"prepare": OPEN, method: DEAD})
        here.poll()
        failed = [one.error for one in here.pool.take_failed_starts()]
        assert (here.numbers, failed, here.pool.take_failed_starts()) == ([], [DEAD], [])


@pytest.mark.parametrize("error", [NODE_DIED, NodeDiedError("")])
def test_a_process_whose_node_is_gone_before_it_ran_is_no_failed_start(
    here: World, error: Exception
) -> None:
    here.starting(locate=error)
    here.poll()
    assert (here.numbers, here.pool.take_failed_starts()) == ([], [])


def test_a_process_whose_node_is_gone_while_it_prepares_is_a_failed_start(here: World) -> None:
    here.starting(prepare=NODE_DIED)
    here.poll()
    assert [one.error for one in here.pool.take_failed_starts()] == [NODE_DIED]


def test_a_process_that_cannot_be_prepared_is_a_failed_start(here: World) -> None:
    actor = here.starting(prepare=raised(ModuleNotFoundError("No module named 'torch'")))
    here.poll()
    [failed] = here.pool.take_failed_starts()
    assert isinstance(failed.error, ProcessLost)
    assert "ModuleNotFoundError: No module named 'torch'" in str(failed.error)
    assert (here.numbers, here.ray.killed) == ([], [actor])


def test_a_process_that_cannot_build_the_task_says_so_with_its_node(here: World) -> None:
    error = TaskRaised(None, None, "FileNotFoundError: no data")
    here.starting(
        locate=ProcessLocation(node=THERE, host="10.0.0.1", pid=77), prepare=raised(error)
    )
    here.poll()
    assert here.pool.take_failed_starts() == [FailedStart(error=error, node=THERE, host="10.0.0.1")]


def test_a_process_is_kept_away_from_nodes_that_are_avoided(here: World) -> None:
    here.pool.start()
    here.pool.start({"b", "a"})
    assert [options.get("label_selector") for options in here.ray.options] == [
        None,
        {"ray.io/node-id": "!in(a,b)"},
    ]


def test_a_process_reserves_custom_resources_and_needs_the_labels_of_the_spec(
    tmp_path: Path,
) -> None:
    needs = WorkersSpec(resources={"fpga": 1}, node_labels={"zone": "a"})
    here = pool_of(tmp_path, workers=needs)
    here.pool.start()
    here.pool.start({"b"})
    assert [options["resources"] for options in here.ray.options] == [{"fpga": 1}] * 2
    assert [options["label_selector"] for options in here.ray.options] == [
        {"zone": "a"},
        {"zone": "a", "ray.io/node-id": "!b"},
    ]


@pytest.mark.parametrize(
    ("own", "both"), [("!c", "!in(a,b,c)"), ("in(a,c,d)", "in(c,d)"), ("a", "a")]
)
def test_a_process_is_kept_away_from_avoided_nodes_and_those_that_the_spec_excludes(
    tmp_path: Path, own: str, both: str
) -> None:
    here = pool_of(tmp_path, workers=WorkersSpec(node_labels={"ray.io/node-id": own}))
    here.pool.start({"b", "a"})
    assert [options["label_selector"] for options in here.ray.options] == [{"ray.io/node-id": both}]


def test_a_process_that_is_lost_while_it_waits_is_no_failed_start(here: World) -> None:
    [actor] = here.hired(0)
    actor.die()
    here.poll(2 * HEARTBEAT_S)
    assert (here.numbers, here.pool.take_failed_starts(), here.pool.results()) == ([], [], {})


def test_every_member_is_told_its_rank_and_where_the_first_one_waits(here: World) -> None:
    actors = here.hired(0, 1, 2)
    actors[2].answers["open_store"] = ("10.0.0.3", 4711)
    here.pool.start_group((2, 0), 5, None)
    assert [call.arguments for call in actors[2].asked("open_store")] == [(5,)]
    seats = [actor.asked("train")[0].arguments[0] for actor in (actors[2], actors[0])]
    assert [
        (assignment.generation, assignment.rank, assignment.world_size) for assignment in seats
    ] == [
        (5, 0, 2),
        (5, 1, 2),
    ]
    assert {assignment.store for assignment in seats} == {("10.0.0.3", 4711)}
    assert actors[1].asked("train") == actors[0].asked("open_store") == []


@pytest.mark.parametrize("answer", [OPEN, DEAD, raised(OSError("no port is free"))])
def test_a_leader_that_opens_no_store_is_dismissed_and_nobody_is_seated(
    here: World, answer: Any
) -> None:
    actors = here.hired(0, 1)
    actors[1].answers["open_store"] = answer
    with pytest.raises(ProcessLost):
        here.pool.start_group((1, 0), 1, None)
    assert (here.numbers, here.ray.killed) == ([0], [actors[1]])
    assert [actor.asked("train") for actor in actors] == [[], []]


@pytest.mark.parametrize(("limit_s", "waited_s"), [(1, 1), (40, 40), (900, PEER_TIMEOUT_S)])
def test_a_leader_may_take_as_long_to_open_a_store_as_for_a_heartbeat(
    tmp_path: Path, limit_s: float, waited_s: float
) -> None:
    here = pool_of(tmp_path, limits=LimitsSpec(answer_seconds=limit_s))
    [actor] = here.hired(0)
    actor.answers["open_store"], began = OPEN, here.ray.now
    with pytest.raises(ProcessLost, match=f"within {waited_s:g} s"):
        here.pool.start_group((0,), 1, None)
    assert here.ray.now - began == waited_s


def test_a_killed_member_counts_as_returned_and_is_not_asked_again(here: World) -> None:
    actors = here.hired(0, 1, 2)
    here.pool.start_group((2, 1), 1, None)
    here.pool.kill(1)
    assert (here.pool.results(), here.numbers) == ({1: KILLED}, [0, 2])
    assert (here.ray.killed, here.ray.signals) == ([actors[1]], [(ITSELF, 1)])
    actors[1].answer("train", "completed")
    here.pool.kill(1)
    here.poll()
    assert here.pool.results() == {1: KILLED}


def test_a_member_that_is_gone_counts_as_returned_when_it_is_killed(here: World) -> None:
    here.seated(2)
    here.pool.stop(1)
    here.pool.kill(1)
    assert here.pool.results() == {1: KILLED}


def test_a_new_group_has_nothing_of_what_the_old_one_came_back_with(here: World) -> None:
    actors = here.seated(3)
    actors[0].answer("train", "resized")
    actors[1].answer("train", raised(TaskRaised(1, 0, "ValueError: no")))
    here.poll()
    here.pool.kill(2)
    assert sorted(here.pool.results()) == [0, 1, 2]
    actors[0].answers["train"] = actors[1].answers["train"] = OPEN
    here.pool.start_group((1, 0), 2, None)
    actors[2].answer("train", "completed")
    here.poll()
    assert here.pool.results() == {}


def test_the_newest_step_is_known_though_the_one_that_made_it_is_gone(here: World) -> None:
    actors = here.seated(2)
    assert here.pool.last_step() is None
    actors[0].made(8, at=80.0)
    actors[1].made(9, at=90.0)
    here.poll(3 * HEARTBEAT_S)
    actors[1].die()
    here.poll(2 * HEARTBEAT_S)
    assert here.numbers == [0]
    assert here.pool.last_step() == (9, 90.0)
    actors[0].made(10, at=100.0)
    assert here.pool.last_step() == (10, 100.0)


def test_a_step_is_heard_from_whoever_answers_in_time(here: World) -> None:
    actors = here.seated(3)
    for actor, answer in zip(
        actors, (OPEN, DEAD, Heartbeat(step=7, stepped_at=70.0, compute_s=0.0)), strict=True
    ):
        actor.answers["last_step"] = answer
    assert here.pool.last_step() == (7, 70.0)


def test_a_new_group_has_made_no_step_until_it_says_so(here: World) -> None:
    actors = here.seated(1)
    actors[0].made(8)
    assert here.pool.last_step() == (8, 1.0)
    actors[0].made(0, at=0.0)
    here.pool.start_group((0,), 2, None)
    assert here.pool.last_step() is None


def test_processes_of_drained_nodes_leave_those_that_prepare_too(here: World) -> None:
    elsewhere = ProcessLocation(node=THERE, host="10.0.0.1", pid=77)
    here.hired(0)
    here.starting(locate=elsewhere)
    here.starting(locate=elsewhere, prepare=OPEN)
    here.poll()
    assert [one.leaving_since for one in here.pool.processes] == [None] * 3
    here.ray.draining.add(THERE)
    here.poll()
    [stays, *leave] = [one.leaving_since for one in here.pool.processes]
    assert stays is None
    assert None not in leave
    here.poll()
    assert [one.leaving_since for one in here.pool.processes] == [stays, *leave]


def test_nodes_are_looked_at_twice_a_second(here: World) -> None:
    here.poll(10.0)
    assert 15 <= len(here.ray.surveys) <= 10.0 / DRAINING_CHECK_S


def test_a_cluster_that_cannot_say_who_leaves_disturbs_nobody(here: World) -> None:
    here.ray.is_away = True
    here.hired(0)
    assert here.ready == [0]


def test_a_group_is_asked_to_make_room_by_its_leader_if_that_lives(here: World) -> None:
    actors = here.hired(0, 1)
    here.pool.start_group((1, 0), 1, None)
    here.pool.resize(NOTE)
    assert [call.arguments for call in actors[1].asked("resize")] == [(NOTE,)]
    actors[1].die()
    here.poll(2 * HEARTBEAT_S)
    here.pool.resize(NOTE)
    assert [len(actor.asked("resize")) for actor in actors] == [0, 1]


def test_members_that_still_train_are_told_to_leave_their_broken_group(here: World) -> None:
    actors = here.hired(0, 1, 2)
    here.pool.start_group((0, 1, 2), 7, None)
    actors[0].answer("train", raised(TaskRaised(1, 0, "ValueError: no")))
    actors[1].die()
    here.poll(2 * HEARTBEAT_S)
    here.pool.leave_group()
    asked = [[call.arguments for call in actor.asked("leave_group")] for actor in actors]
    assert asked == [[], [], [(7,)]]


def test_processes_are_dismissed_once_and_all_at_the_end(here: World) -> None:
    actors = here.hired(0, 1, 2)
    here.pool.stop(1)
    here.pool.stop(1)
    assert (here.ray.killed, here.numbers) == ([actors[1]], [0, 2])
    here.pool.close()
    assert (here.ray.killed, here.numbers) == ([actors[1], actors[0], actors[2]], [])


def test_what_a_process_wrote_down_before_it_died_is_why_it_came_back(
    here: World, tmp_path: Path
) -> None:
    actors = here.seated(2)
    file = exit_note_path(str(tmp_path), HERE, 1)
    file.parent.mkdir()
    file.write_text("the process ended itself with os._exit(3) at train.py:7\n")
    actors[1].made(4)
    actors[1].die()
    here.poll()
    [(rank, why)] = here.pool.results().items()
    assert (rank, type(why), str(why)) == (
        1,
        ProcessCrashed,
        "the process ended itself with os._exit(3) at train.py:7",
    )
    assert not file.exists()


def test_how_far_each_rank_was_is_known_when_a_group_ended(here: World) -> None:
    actors = here.hired(0, 1)
    here.pool.start_group((1, 0), 1, None)
    progress = RankProgress(step=7, epoch=0, doing="training")
    actors[1].answers["last_step"] = Heartbeat(
        step=7, stepped_at=1.0, compute_s=0.0, progress=progress
    )
    here.pool.last_step()
    assert here.pool.progress() == {0: progress, 1: RankProgress()}
