"""Which nodes a failure names, and where no process is started."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError

from accordion_workers.common.errors import (
    OutOfMemory,
    ProcessCrashed,
    ProcessLost,
    StorageError,
    StorageNotShared,
    TaskRaised,
)
from accordion_workers.controller.failed_nodes import find_failed_nodes
from accordion_workers.records.contract import DesiredState
from tests.unit.workers.attempt_world import World
from tests.unit.workers.fake_pool import BROKEN, FakePool

TWO = {0: "a", 1: "b"}
CUDA = TaskRaised(3, 0, "AcceleratorError: CUDA error: uncorrectable ECC error encountered")
LOST_GPU = RuntimeError("Unable to determine the device handle for GPU0: GPU is lost")


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        NodeDiedError("the node died"),
        ProcessLost("the process was killed because memory ran out: it used 1.0 GB"),
        StorageNotShared("node b does not see the storage of this job"),
        CUDA,
        LOST_GPU,
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_that_may_be_the_nodes_fault_names_the_node(error: BaseException) -> None:
    assert find_failed_nodes({0: BROKEN, 1: error}, TWO) == ("b",)


@pytest.mark.parametrize(
    "error",
    [
        TaskRaised(3, 0, "ValueError: no"),
        ProcessCrashed("the process ended itself with os._exit(1) at train.py:3"),
        OutOfMemory("4.1 GB; its node used 7.9 of 8.0 GB"),
        TaskRaised(3, 0, "OutOfMemoryError: CUDA out of memory"),
        TaskRaised(3, 0, "RuntimeError: CUDA error: device-side assert triggered"),
        TaskRaised(3, 0, "RuntimeError: CUDA error: unspecified launch failure"),
        OutOfMemoryError("Ray killed the worker"),
        StorageError("the model of job a to start with cannot be read"),
        OSError(errno.ESTALE, "Stale file handle"),
        BROKEN,
    ],
)
def test_the_jobs_own_failure_names_no_node(error: BaseException) -> None:
    assert find_failed_nodes({0: BROKEN, 1: error}, TWO) == ()


@pytest.mark.parametrize("error", [ActorDiedError(), CUDA])
def test_a_failure_on_all_nodes_of_a_group_names_none(error: BaseException) -> None:
    assert find_failed_nodes({0: error, 1: error}, TWO) == ()
    assert find_failed_nodes({0: error, 1: error}, {0: "a", 1: "a"}) == ("a",)


def test_a_storage_that_the_only_node_does_not_see_names_none() -> None:
    assert find_failed_nodes({0: StorageNotShared("node a sees no storage")}, {0: "a"}) == ()


@pytest.mark.parametrize("own", [TaskRaised(3, 0, "ValueError: no"), OutOfMemory("4.1 GB")])
def test_an_error_of_the_jobs_own_explains_the_death_of_a_peer(own: BaseException) -> None:
    killed = ProcessLost("rank 1 did not return from a broken group")
    assert find_failed_nodes({0: own, 1: killed}, TWO) == ()


def test_a_death_explains_the_errors_of_the_others() -> None:
    assert find_failed_nodes({0: CUDA, 1: ActorDiedError()}, TWO) == ("b",)


def test_a_process_without_a_known_node_names_none() -> None:
    assert find_failed_nodes({0: ActorDiedError(), 1: BROKEN}, {0: "", 1: "b"}) == ()


def test_an_attempt_records_the_node_of_a_process_that_died(world: Callable[..., World]) -> None:
    here = world(nodes={1: "b"})
    here.run(lambda pool: pool.come_back({1: ActorDiedError()}))
    assert [record.nodes for record in here.host.records] == [("b",)]


def test_a_node_that_was_being_drained_is_not_to_blame(world: Callable[..., World]) -> None:
    here = world(least=2, nodes={1: "b"}, slow={2})
    here.run(
        lambda pool: pool.leave(1),
        lambda pool: (pool.slow.clear(), pool.come_back({1: NodeDiedError("the node died")})),
    )
    assert [record.nodes for record in here.host.records] == [()]


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ProcessCrashed("the process ended itself with os._exit(1)"),
        TaskRaised(None, None, "FileNotFoundError: data/train.npz"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_process_that_ends_at_its_start_names_no_node(
    world: Callable[..., World], error: BaseException
) -> None:
    here = world(least=2, nodes={1: "b"}, slow={1})
    here.run(lambda pool: pool.cannot_start(1, error))
    assert [record.nodes for record in here.host.records] == [()]


def test_a_node_that_does_not_see_the_storage_at_the_start_is_named(
    world: Callable[..., World],
) -> None:
    here = world(least=2, nodes={1: "b"}, slow={1})
    here.run(lambda pool: pool.cannot_start(1, StorageNotShared("node b sees no storage")))
    assert [record.nodes for record in here.host.records] == [("b",)]


def test_a_node_that_lacks_the_storage_that_others_see_is_named(
    world: Callable[..., World],
) -> None:
    here = world(least=2, nodes={1: "b"})
    here.run(lambda pool: pool.come_back({1: StorageNotShared("node b sees no storage")}))
    assert [record.nodes for record in here.host.records] == [("b",)]


def test_no_process_is_started_where_launch_or_orders_forbid_it(
    world: Callable[..., World],
) -> None:
    here = world(most=1)
    launch = here.attempt.launch.model_copy(update={"avoid": ("b",)})
    attempt = replace(here.attempt, launch=launch)
    died = {0: ActorDiedError()}

    def order(pool: FakePool) -> None:
        here.host.wanted = DesiredState(version=1, avoid=("c",))
        pool.come_back(died)

    World(attempt, here.pool, here.host).run(lambda pool: pool.come_back(died), order)
    assert here.pool.avoided == [{"b"}, {"b"}, {"c"}]


def test_a_process_without_a_node_is_requested_again_when_the_orders_change(
    world: Callable[..., World],
) -> None:
    here = world(least=2, slow={1})

    def lose_place(pool: FakePool) -> None:
        pool.members[1] = replace(pool.members[1], node=None)

    def order(_: FakePool) -> None:
        here.host.wanted = DesiredState(version=1, avoid=("b",))

    here.run(lose_place, order)
    assert 1 in here.pool.dismissed
    assert here.pool.avoided[-1] == {"b"}
    assert any(
        said.endswith("; 1 node takes no workers: 'accordion nodes' lists them")
        for said in here.host.said
    )
