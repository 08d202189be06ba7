"""What worker processes that cannot build the task mean for an attempt."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

from tests.unit.workers.attempt_world import World
from tests.unit.workers.fake_pool import FakePool
from workers.contract import DesiredState, EndRecord, Size
from workers.controller.start_failures import AVOID_S
from workers.errors import DataFetchError, ProcessCrashed, StorageError, TaskRaised

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
    [told] = [said for said in here.host.said if "cannot build the task" in said]
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
    assert "no worker process could build the task; on node host-a: " in end.message


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


NOT_SHARED = StorageError(
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
