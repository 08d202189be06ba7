"""What an attempt does about the packages of its job, without Ray's processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from accordion_workers.common.errors import PackagesError
from accordion_workers.controller import supervisor as supervisor_module
from accordion_workers.controller.actor_pool import ActorPool
from accordion_workers.controller.hang_detection import INSTALL_MARGIN_S
from accordion_workers.controller.package_resolution import ResolutionHost, ResolutionStopped
from accordion_workers.controller.ray_train_pool import RayTrainPool
from accordion_workers.controller.supervisor import Supervisor
from accordion_workers.hub.journal import read_end, read_records
from accordion_workers.records.contract import (
    DesiredState,
    EndRecord,
    Launch,
    PackagesRecord,
    PipIndex,
)
from accordion_workers.spec.job import LimitsSpec, WorkersSpec
from accordion_workers.user_code.packages import INSTALL_LIMIT_S
from tests.unit.workers.attempt_world import World as AttemptWorld
from tests.unit.workers.fake_pool import FakePool
from tests.unit.workers.fake_ray import OPEN, FakeRay
from tests.unit.workers.pool_world import World, pool_of
from tests.unit.workers.world import JOB, FakeCluster, launch, until

COMPLETED = EndRecord(status="SUCCEEDED", reason="COMPLETED")
NO_WHEEL = PackagesError("pip cannot install the packages here: not a supported wheel")


def begin(
    cluster: FakeCluster, storage: Path, pools: list[FakePool] | None = None, **fields: Any
) -> Supervisor:
    """Start the supervisor of a job whose packages its workers have, or others; its pool is added
    to `pools`.
    """
    job = launch(storage, pip=fields.pop("pip", ("packaging",))).model_copy(update=fields)
    pool = FakePool(job, ["completed"])
    if pools is not None:
        pools.append(pool)
    return Supervisor(
        job.model_dump_json(), create_pool=lambda _: pool, client=cluster, pause=lambda _: None
    )


def run(cluster: FakeCluster, storage: Path, **fields: Any) -> EndRecord:
    supervisor = begin(cluster, storage, **fields)
    until(lambda: supervisor.state()[0] == "ended")
    found = read_end(storage)
    assert found is not None
    return found[0]


def packages_records(storage: Path) -> list[PackagesRecord]:
    payloads = [record.payload for record in read_records(storage)]
    return [payload for payload in payloads if isinstance(payload, PackagesRecord)]


def test_packages_are_resolved_and_recorded_by_the_first_attempt_only(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    assert run(cluster, tmp_path) == COMPLETED
    assert run(cluster, tmp_path, attempt=2, retried_attempt=1) == COMPLETED
    [record] = packages_records(tmp_path)
    assert record.packages == ()


def test_packages_that_cannot_be_resolved_end_the_job_before_any_process(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    end = run(cluster, tmp_path, pip=("packaging<2",))
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert f"packaging {version('packaging')} belongs to the workers' own" in end.message
    assert [record.payload.kind for record in read_records(tmp_path)] == ["end"]


def test_a_token_in_the_path_of_an_index_reaches_neither_the_log_nor_the_end(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index = PipIndex(url=(tmp_path / "s3cret-of-ada" / "simple").as_uri())
    end = run(cluster, tmp_path, pip=("acc-nothing",), pip_index=index)
    told = " ".join(line.text for line in cluster.drain().logs)
    assert "Looking in indexes: file://***" in told
    assert "No matching distribution found for acc-nothing" in end.message
    assert "s3cret" not in f"{told} {end.message}"


@pytest.fixture
def resolving(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set while packages are resolved, which goes on until the job is to stop."""
    began = threading.Event()

    def resolve_until_stopped(job: Launch, host: ResolutionHost) -> None:
        host.publish_status(f"resolving {job.spec.pip[0]}")
        began.set()
        until(host.is_stopping)
        raise ResolutionStopped

    monkeypatch.setattr(supervisor_module, "resolve_packages", resolve_until_stopped)
    return began


def test_a_supervisor_that_resolves_answers_and_can_be_cancelled(
    cluster: FakeCluster, tmp_path: Path, resolving: threading.Event
) -> None:
    pools: list[FakePool] = []
    supervisor = begin(cluster, tmp_path, pools)
    assert resolving.wait(60)
    assert supervisor.state() == ("resolving", "resolving packaging", None, ())
    cluster.call("order", JOB, DesiredState(version=1, stop="cancel"))
    until(lambda: supervisor.state()[0] == "ended")
    found = read_end(tmp_path)
    assert found is not None
    assert found[0].reason == "CANCELLED_BY_USER"
    assert pools[0].hired == 0


def test_a_job_that_is_paused_while_it_resolves_resolves_later(
    cluster: FakeCluster, tmp_path: Path, resolving: threading.Event
) -> None:
    pools: list[FakePool] = []
    supervisor = begin(cluster, tmp_path, pools)
    assert resolving.wait(60)
    cluster.call("order", JOB, DesiredState(version=1, stop="pause"))
    until(lambda: supervisor.state()[0] == "ended")
    assert read_end(tmp_path) is None
    assert [record.payload.kind for record in read_records(tmp_path)] == ["paused"]
    assert pools[0].hired == 0


@pytest.fixture(params=[None, RayTrainPool], ids=["actors", "ray-train"])
def here(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """A pool of a job that has packages, on either engine."""
    kind = {} if request.param is None else {"kind": request.param}
    return pool_of(tmp_path, **kind, pip=("acc-alpha",), limits=LimitsSpec(start_seconds=10))


def test_a_process_installs_packages_before_it_prepares(here: World) -> None:
    actor = here.starting(install_packages=OPEN)
    here.poll()
    assert (len(actor.asked("install_packages")), actor.asked("prepare")) == (1, [])
    actor.answer("install_packages", None)
    until(lambda: (here.poll(), here.ready)[1] == [0])


def test_time_to_install_does_not_count_for_the_limit_of_a_start(here: World) -> None:
    actor = here.starting(install_packages=OPEN, prepare=OPEN)
    here.poll(60.0)
    assert here.numbers == [0]
    actor.answer("install_packages", None)
    here.poll(8.0)
    assert here.numbers == [0]
    here.poll(4.0)
    [failed] = here.pool.take_failed_starts()
    assert "not loaded within 10 s" in str(failed.error)


def test_a_process_that_cannot_install_says_so(here: World) -> None:
    here.starting(install_packages=raised(NO_WHEEL))
    here.poll()
    [failed] = here.pool.take_failed_starts()
    assert failed.error is NO_WHEEL


def raised(error: Exception) -> Exception:
    """Return how Ray brings an error of an actor."""
    return RayTaskError("install_packages", "traceback", error).as_instanceof_cause()


def test_workers_do_not_get_the_index(tmp_path: Path) -> None:
    fake = FakeRay()
    index = PipIndex(url="https://ada:s3cret-of-ada@a.example/simple")
    job = launch(tmp_path, pip=("acc-alpha",)).model_copy(update={"pip_index": index})
    ActorPool(job, measure=lambda _: None, **fake.pool_arguments()).start()
    [given] = fake.launches
    assert "s3cret" not in given
    assert Launch.model_validate_json(given).spec.pip == ("acc-alpha",)


def test_packages_that_no_process_can_install_end_the_job_as_nobodys_failure(
    world: Callable[..., AttemptWorld],
) -> None:
    here = world(most=1, slow={0})
    here.pool.on_poll = lambda pool: pool.cannot_start(0, NO_WHEEL) if 0 in pool.members else None
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert end.message.startswith("no worker process could install the packages; on node host-a: ")
    assert [(one.cause, one.final) for one in here.host.records] == [("infrastructure", True)]


def test_packages_that_one_node_cannot_install_are_tried_on_another_one(
    world: Callable[..., AttemptWorld],
) -> None:
    here = world(most=1, nodes={1: "b"}, slow={0})
    here.pool.on_poll = None
    assert here.run(lambda pool: pool.cannot_start(0, NO_WHEEL)) == COMPLETED
    assert here.pool.avoided == [frozenset(), frozenset({"a"})]
    assert [(one.cause, one.final) for one in here.host.records] == [("infrastructure", False)]


def test_packages_that_two_nodes_cannot_install_end_the_job(
    world: Callable[..., AttemptWorld],
) -> None:
    here = world(most=1, nodes={1: "b", 2: "c"}, slow={0, 1, 2})

    def fail(pool: FakePool) -> None:
        for number in list(pool.members):
            pool.cannot_start(number, NO_WHEEL)

    here.pool.on_poll = fail
    end = here.attempt.run()
    assert isinstance(end, EndRecord)
    assert (end.reason, here.pool.hired) == ("START_FAILED", 2)
    assert [one.final for one in here.host.records] == [False, True]


NODE = {"Alive": True, "Resources": {"CPU": 2.0, "memory": 1e9}, "Labels": {"zone": "x"}}


@pytest.mark.parametrize(
    ("workers", "changes", "fits"),
    [
        ({}, {}, True),
        ({}, {"NodeID": "a"}, False),
        ({}, {"Alive": False}, False),
        ({"cpus": 4}, {}, False),
        ({"gpus": 1}, {}, False),
        ({"resources": {"fast": 1}}, {}, False),
        ({"node_labels": {"zone": "x"}}, {}, True),
        ({"node_labels": {"zone": "y"}}, {}, False),
        ({"node_labels": {"zone": "in(x, y)", "disk": "!hdd"}}, {}, True),
        ({"node_labels": {"zone": "!in(x,y)"}}, {}, False),
    ],
)
def test_a_pool_knows_whether_another_node_is_large_enough(
    tmp_path: Path, workers: dict[str, Any], changes: dict[str, Any], fits: bool
) -> None:
    here = pool_of(tmp_path, workers=WorkersSpec(engine="actors", **workers))
    here.ray.cluster_nodes = [{"NodeID": "a", **NODE}, {"NodeID": "b", **NODE, **changes}]
    assert here.pool.has_other_node({"a"}) is fits


def test_a_process_that_never_ends_its_installation_is_killed(here: World) -> None:
    here.starting(install_packages=OPEN)
    here.poll(INSTALL_LIMIT_S)
    assert here.numbers == [0]
    here.poll(INSTALL_MARGIN_S + 1)
    [failed] = here.pool.take_failed_starts()
    assert isinstance(failed.error, PackagesError)


def test_a_node_that_cannot_install_the_packages_is_avoided(
    world: Callable[..., AttemptWorld],
) -> None:
    here = world(nodes={1: "b"}, slow={1})
    assert here.run(lambda pool: pool.cannot_start(1, NO_WHEEL)) == COMPLETED
    assert here.pool.avoided[-1] == {"b"}
    told = "node host-b cannot take part: pip cannot install"
    assert any(told in said for said in here.host.said)
