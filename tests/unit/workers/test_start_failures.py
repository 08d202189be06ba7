"""What worker processes that cannot build the task mean for an attempt."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from accordion_workers.common.errors import (
    DataFetchError,
    DataNotOnNode,
    PackagesError,
    ProcessCrashed,
    StorageError,
    StorageNotShared,
    TaskRaised,
)
from accordion_workers.records.contract import AVOID_S, DesiredState, EndRecord, Size
from tests.unit.workers.attempt_world import World
from tests.unit.workers.fake_pool import FakePool

NO_DATA = TaskRaised(None, None, "FileNotFoundError: no data here")


def test_a_newcomer_that_cannot_build_the_task_is_a_failed_start_only(
    world,
) -> None:
    here = world(most=3, slow={2, 3}, nodes={2: "b"})

    def cannot(pool: FakePool) -> None:
        pool.cannot_start(2, NO_DATA)

    end = here.run(*[lambda _: None] * 3, cannot, lambda pool: pool.slow.clear())
    assert end == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert (here.pool.seated[0], here.host.records) == ((0, 1), [])
    assert here.pool.avoided == [frozenset(), frozenset(), frozenset(), frozenset({"b"})]
    [told] = [said for said in here.host.said if "cannot load the task" in said]
    assert "node host-b" in told
    assert "FileNotFoundError: no data here" in told


def test_a_node_that_lacks_something_at_the_first_start_is_avoided_too(
    world: Callable[..., World],
) -> None:
    here = world(nodes={1: "b"}, slow={1})
    here.pool.on_poll = None
    here.run(lambda pool: pool.cannot_start(1, NO_DATA))
    assert here.pool.avoided[-1] == {"b"}
    assert here.pool.seated[-1] == (0, 2)


def test_data_that_no_process_can_get_end_the_job_without_using_its_failure_budget(
    world: Callable[..., World],
) -> None:
    here = world(least=1)
    missing = DataFetchError("data 'train': there is nothing at s3://bucket/train")

    def fail(pool: FakePool) -> None:
        for number in list(pool.members):
            pool.cannot_start(number, missing)

    here.pool.on_poll = fail
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert "no worker process could get the data" in end.message
    assert "there is nothing at s3://bucket/train" in end.message
    assert [record.cause for record in here.host.records] == ["infrastructure"]


def test_a_node_that_cannot_get_the_data_is_avoided(world: Callable[..., World]) -> None:
    here = world(nodes={1: "b"}, slow={1})
    here.pool.on_poll = None
    here.run(lambda pool: pool.cannot_start(1, DataFetchError("/mnt/data cannot be used")))
    assert here.pool.avoided[-1] == {"b"}


def test_a_task_that_no_process_can_build_ends_the_job_when_all_have_tried(
    world: Callable[..., World],
) -> None:
    here = world(slow={0, 1})
    tried: list[float] = []

    def fail(pool: FakePool) -> None:
        if pool.now > 1.0 and 0 in pool.members:
            pool.cannot_start(0, NO_DATA)
        if pool.now > 5.0:
            pool.cannot_start(1, NO_DATA)
            tried.append(pool.now)

    here.pool.on_poll = fail
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired, len(tried)) == ("TASK_RAISED", 2, 1)
    assert "no worker process could load the task; on node host-a: " in end.message


def test_a_process_that_fails_where_another_succeeded_does_not_cost_the_node(
    world: Callable[..., World],
) -> None:
    here = world(slow={1})
    here.run(lambda pool: pool.cannot_start(1, NO_DATA))
    assert here.pool.avoided[-1] == frozenset()


def test_members_that_cannot_build_the_model_are_ended_and_their_node_is_avoided(world) -> None:
    here = world(least=2, nodes={1: "b"})
    end = here.run(lambda pool: pool.come_back({1: NO_DATA}))
    assert end == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert (here.pool.seated, here.pool.avoided[-1]) == ([(0, 1), (0, 2)], {"b"})
    assert [record.cause for record in here.host.records] == ["infrastructure"]


def test_a_node_is_avoided_for_a_time_only(world: Callable[..., World]) -> None:
    here = world(slow={1, 2}, nodes={1: "b"})
    here.host.wanted = DesiredState(version=1, size=Size(min=1, target=2))

    def unplaced(pool: FakePool) -> None:
        pool.members[2] = replace(pool.members[2], node=None)
        pool.now += AVOID_S

    here.run(lambda pool: pool.cannot_start(1, NO_DATA), unplaced)
    assert 2 in here.pool.dismissed
    assert here.pool.avoided[2:] == [{"b"}, frozenset()]


NOT_SHARED = StorageNotShared(
    "node 10.0.0.3 does not see the storage of this job, /data; mount the same directory"
)


def test_a_node_that_does_not_see_the_storage_is_avoided_and_the_job_trains_on(
    world: Callable[..., World],
) -> None:
    here = world(nodes={1: "b"}, slow={1})
    here.run(lambda pool: pool.cannot_start(1, NOT_SHARED))
    assert here.pool.avoided[-1] == {"b"}
    assert any("cannot take part: node 10.0.0.3 does not see" in said for said in here.host.said)


def test_a_job_whose_storage_no_process_sees_ends_with_the_way_out(
    world: Callable[..., World],
) -> None:
    here = world(least=1, most=1, slow={0})
    here.pool.on_poll = lambda pool: pool.cannot_start(0, NOT_SHARED) if 0 in pool.members else None
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert "mount the same directory" in end.message


UNREACHABLE = OSError(errno.ENOTCONN, "Transport endpoint is not connected")


def test_a_job_waits_for_a_directory_that_its_first_processes_cannot_read(
    world: Callable[..., World],
) -> None:
    here = world("completed", most=1, slow=set(range(8)))
    here.pool.on_poll = lambda pool: [
        pool.cannot_start(number, UNREACHABLE) for number in pool.slow & set(pool.members)
    ]
    assert here.attempt.run() == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert [(record.cause, record.is_storage) for record in here.host.records] == [
        ("infrastructure", True)
    ] * 8
    assert any("cannot reach the directory of this job" in said for said in here.host.said)


def test_a_node_whose_mount_is_broken_is_avoided(world: Callable[..., World]) -> None:
    here = world(least=2, nodes={1: "b"}, slow={1})
    here.run(lambda pool: pool.cannot_start(1, UNREACHABLE))
    assert here.pool.avoided[-1] == {"b"}
    assert any("node host-b cannot take part: OSError" in said for said in here.host.said)


def test_process_that_crashes_on_one_node_does_not_end_a_job_that_loads_elsewhere(world) -> None:
    here = world(least=2, nodes={1: "b", 2: "b"}, slow={1, 2})
    crash = ProcessCrashed("the process crashed with illegal instruction at kernel.py:3")
    end = here.run(
        *[lambda pool: [pool.cannot_start(n, crash) for n in {1, 2} & set(pool.members)]] * 20
    )
    assert end == EndRecord(status="SUCCEEDED", reason="COMPLETED")
    assert here.pool.avoided[-1] == {"b"}
    assert [(record.cause, record.step) for record in here.host.records] == [("job", None)] * 2


COMPLETED = EndRecord(status="SUCCEEDED", reason="COMPLETED")
NO_PATH = DataNotOnNode("data 'train': /mnt/train cannot be used on this node; mount it here")


def failing_on(*nodes: str, error: BaseException) -> Callable[[FakePool], None]:
    """Each process on one of these nodes ends before it is ready."""

    def fail(pool: FakePool) -> None:
        for number, process in list(pool.members.items()):
            if process.node in nodes:
                pool.cannot_start(number, error)

    return fail


@pytest.mark.parametrize(
    "error", [NOT_SHARED, NO_PATH, UNREACHABLE], ids=lambda one: type(one).__name__
)
def test_the_only_worker_of_a_new_job_is_tried_on_another_node(
    world: Callable[..., World], error: BaseException
) -> None:
    here = world("completed", most=1, nodes={1: "b"})
    here.pool.on_poll = failing_on("a", error=error)
    assert here.attempt.run() == COMPLETED
    assert here.pool.avoided == [frozenset(), {"a"}]
    [record] = here.host.records
    assert (record.is_storage, record.final, record.nodes) == (True, False, ())
    assert record.message.startswith("a worker process on node host-a cannot take part: ")
    assert str(error) in record.message


def test_all_workers_of_a_new_job_are_tried_on_another_node(world: Callable[..., World]) -> None:
    here = world("completed", least=2, nodes={2: "b", 3: "b"})
    here.pool.on_poll = failing_on("a", error=NOT_SHARED)
    assert here.attempt.run() == COMPLETED
    assert here.pool.avoided == [frozenset(), frozenset(), {"a"}, {"a"}]


@pytest.mark.parametrize(
    ("error", "task"), [(NOT_SHARED, "see the storage"), (NO_PATH, "get the data")]
)
def test_a_new_job_ends_when_every_node_lacks_what_it_needs(
    world: Callable[..., World], error: BaseException, task: str
) -> None:
    here = world(most=1, nodes={1: "b", 2: "c"})
    here.pool.on_poll = failing_on("a", "b", "c", error=error)
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("START_FAILED", 3)
    assert end.message.startswith(f"no worker process could {task} on any of 3 nodes; on node host")
    assert end.message.endswith(str(error)), "the way out"
    assert [record.final for record in here.host.records] == [False, False, True]


def test_many_nodes_without_the_storage_are_tried_quickly_and_end_no_job(
    world: Callable[..., World],
) -> None:
    lacking = {number: f"n{number}" for number in range(40)}
    here = world("completed", most=1, nodes={**lacking, 40: "good"})
    here.pool.on_poll = failing_on(*lacking.values(), error=NOT_SHARED)
    assert here.attempt.run() == COMPLETED
    assert here.pool.hired_when[-1] < AVOID_S / 4, "none is used again before all were tried"
    assert max(map(len, here.host.said)) < 1000, "few of them are explained"


def test_a_storage_that_no_node_reaches_is_waited_for_on_all_of_them(
    world: Callable[..., World],
) -> None:
    here = world("completed", most=1, nodes={1: "b", 3: "b", 4: "good"})
    here.pool.on_poll = failing_on("a", "b", error=UNREACHABLE)
    here.pool.has_other_node = lambda nodes: not {"a", "b"} <= set(nodes)  # type: ignore[method-assign]
    assert here.attempt.run() == COMPLETED
    assert here.pool.avoided == [frozenset(), {"a"}, frozenset(), {"a"}, frozenset()]
    pauses = [later - earlier for earlier, later in pairwise(here.pool.hired_when)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0], "it is looked for less and less often"


def test_an_error_where_the_storage_is_seen_tells_more_than_a_node_without_it(
    world: Callable[..., World],
) -> None:
    here = world(least=2, nodes={1: "b", 2: "c"})

    def fail(pool: FakePool) -> None:
        pool.cannot_start(0, NOT_SHARED)
        pool.cannot_start(1, NO_DATA)

    here.pool.on_poll = fail
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("TASK_RAISED", 2)
    assert "on node host-b: the task raised" in end.message


@pytest.mark.parametrize(
    "error", [PackagesError("pip cannot install them"), DataFetchError("nothing at s3://b/train")]
)
def test_what_another_node_can_hardly_cure_is_tried_on_two_nodes(
    world: Callable[..., World], error: BaseException
) -> None:
    here = world(most=1, nodes={1: "b", 2: "c"})
    here.pool.on_poll = failing_on("a", "b", "c", error=error)
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("START_FAILED", 2)


def test_a_process_without_a_node_is_requested_again_when_a_node_is_avoided(
    world: Callable[..., World],
) -> None:
    here = world("completed", most=2, nodes={2: "b", 3: "b"}, slow={0, 1})

    def fail(pool: FakePool) -> None:
        if 0 in pool.members:
            pool.members[1] = replace(pool.members[1], node=None)
            pool.cannot_start(0, NOT_SHARED)

    here.pool.on_poll = fail
    assert here.attempt.run() == COMPLETED
    assert here.pool.dismissed[0] == 1
    assert here.pool.avoided == [frozenset(), frozenset(), {"a"}, {"a"}]


REFUSED = StorageError("checkpoints of this job cannot be kept: PermissionError: /mnt/checkpoints")


def test_a_new_job_whose_checkpoints_one_node_cannot_keep_is_tried_on_another_one(world) -> None:
    here = world({0: REFUSED}, "completed", most=1, nodes={1: "b"})
    here.host.makes_progress = False
    assert here.attempt.run() == COMPLETED
    assert here.pool.avoided == [frozenset(), {"a"}]
    [record] = here.host.records
    assert (record.cause, record.final) == ("infrastructure", False)
    assert "on node host-a cannot take part: checkpoints" in record.message


@pytest.mark.parametrize("nodes", [{}, {1: "b", 2: "c"}], ids=["one node", "three nodes"])
def test_a_storage_of_checkpoints_that_refuses_the_job_ends_it(
    world: Callable[..., World], nodes: dict[int, str]
) -> None:
    here = world({0: REFUSED}, most=1, nodes=nodes)
    here.host.makes_progress = False
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("START_FAILED", min(2, len(nodes) + 1))


def test_the_scheduler_is_told_which_nodes_the_attempt_avoids(world: Callable[..., World]) -> None:
    here = world("completed", most=1, nodes={1: "b"})
    here.pool.on_poll = failing_on("a", error=NOT_SHARED)
    here.attempt.run()
    assert here.host.avoided == {"a"}
