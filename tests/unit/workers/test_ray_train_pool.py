"""The worker processes of an attempt as workers of a Ray Train run, over a Ray that answers what
the test says.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from accordion_workers.common.errors import CodeError, EngineUnavailable
from accordion_workers.controller.actor_pool import HEARTBEAT_S
from accordion_workers.controller.ray_train_pool import (
    FIRST_JOIN_S,
    JOIN_S,
    MAX_FAILED_CONTROLLERS,
    MAX_FAILED_JOINS,
    MAX_RETRY_S,
    RETRY_S,
    RayTrainPool,
    check_ray_train,
)
from accordion_workers.controller.worker_pool import choose_engine
from accordion_workers.records.contract import EndRecord, PausedRecord
from accordion_workers.spec.job import TaskSpec
from accordion_workers.worker.process import GroupAssignment
from accordion_workers.worker.ray_train_context import TrainFunctions
from accordion_workers.worker.ray_train_worker import (
    MAX_METRICS,
    WorkerInRayTrain,
    keep_finite_numbers,
)
from accordion_workers.worker.torchrun_env import build_torchrun_env
from tests.unit.workers.fake_ray import DEAD, OPEN
from tests.unit.workers.pool_world import World, pool_of
from tests.unit.workers.world import launch


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = pool_of(tmp_path, kind=RayTrainPool)
    world.ray.must_join = True
    return world


def refused(cause: BaseException) -> RayTaskError:
    error = RayTaskError("add_worker", "", cause)
    error.cause = cause
    return error


def test_a_process_is_ready_once_it_is_prepared_and_part_of_the_run(world: World) -> None:
    world.ray.admission = OPEN
    world.pool.start()
    world.poll()
    assert world.ready == []
    world.ray.controllers[0].answer("add_worker", b"context")
    world.poll()
    assert world.ready == [0]


def test_a_process_whose_code_does_not_use_ray_train_waits_for_no_controller(world: World) -> None:
    world.ray.must_join, world.ray.building = False, OPEN
    world.pool.start()
    world.poll()
    assert world.ready == [0]
    world.ray.controllers[0].answer("wait_until_up", None)
    world.poll(RETRY_S + HEARTBEAT_S)
    assert len(world.ray.controllers[0].asked("add_worker")) == 1


def test_the_workers_train_on_when_the_controller_dies_and_join_the_next_one(world: World) -> None:
    members = world.seated(2)
    world.ray.controllers[0].answer("run", DEAD)
    world.poll()
    assert world.numbers == [0, 1]
    assert not set(members) & set(world.ray.killed)
    assert [call.arguments[1] for call in world.ray.controllers[1].asked("add_worker")] == members
    assert world.pool.results() == {}


def test_a_process_that_prepares_when_the_controller_dies_joins_the_next_one(world: World) -> None:
    world.hired(1)
    actor = world.starting(prepare=OPEN)
    world.poll()
    world.ray.controllers[0].die()
    actor.answer("prepare", True)
    world.poll()
    assert world.ready == [0, 1]
    assert actor in [call.arguments[1] for call in world.ray.controllers[1].asked("add_worker")]


@pytest.mark.parametrize(("task", "number"), [("synthetic", 0), ("script", 1)])
def test_only_a_scripts_controller_starts_before_a_process_is_prepared(
    tmp_path: Path, task: str, number: int
) -> None:
    script = {"task": TaskSpec(name="script", options={"file": "train.py"}), "code": "0" * 64}
    world = pool_of(tmp_path, kind=RayTrainPool, **(script if task == "script" else {}))
    actor = world.starting(prepare=OPEN)
    world.poll()
    assert len(world.ray.controllers) == number
    actor.answer("prepare", True)
    world.poll()
    assert len(world.ray.controllers) == 1


def test_a_controller_that_never_comes_up_ends_the_attempt_with_its_error(world: World) -> None:
    world.ray.admission = OPEN
    world.pool.start()
    error = refused(ModuleNotFoundError("No module named 'pyarrow'"))
    for number in range(MAX_FAILED_CONTROLLERS - 1):
        world.poll()
        world.ray.controllers[number].answer("run", error)
        world.poll(RETRY_S * 2.0**number)
    world.ray.controllers[-1].answer("run", error)
    with pytest.raises(
        EngineUnavailable, match=r"No module named 'pyarrow'; set workers\.engine to actors"
    ):
        world.poll()


def test_training_goes_on_without_a_controller_that_does_not_come_back(world: World) -> None:
    members = world.seated(2)
    for _ in range(2 * MAX_FAILED_CONTROLLERS):
        world.ray.controllers[-1].answer("run", refused(RuntimeError("not this time")))
        world.poll(MAX_RETRY_S + 1)
    assert not set(members) & set(world.ray.killed)


def test_full_storage_delays_the_first_controller_and_ends_no_attempt(world: World) -> None:
    world.ray.building = OPEN
    world.pool.start()
    world.poll()
    for _ in range(2 * MAX_FAILED_CONTROLLERS):
        world.ray.controllers[-1].answer("run", refused(OSError(28, "No space left on device")))
        world.poll(MAX_RETRY_S + 1)
    world.ray.controllers[-1].answer("wait_until_up", None)
    world.poll()
    assert world.ready == [0]


def test_controllers_that_die_at_once_are_replaced_ever_more_slowly(world: World) -> None:
    world.seated(1)
    for _ in range(50):
        world.ray.controllers[-1].answer("run", DEAD)
        world.poll(HEARTBEAT_S)
    assert len(world.ray.controllers) <= 8


def test_a_process_that_starts_without_a_controller_joins_the_newest_run_by_itself(
    world: World,
) -> None:
    world.seated(1)
    for _ in range(MAX_FAILED_CONTROLLERS):
        world.ray.controllers[-1].answer("run", refused(RuntimeError("not this time")))
        world.poll(HEARTBEAT_S)
    [newcomer] = world.hired(1)
    assert world.ready == [0, 1]
    assert [call.arguments for call in newcomer.asked("join_run")] == [(b"context",)]


def test_a_worker_that_holds_pythons_lock_is_not_the_controllers_fault(world: World) -> None:
    world.seated(2)
    world.ray.admission = OPEN
    world.ray.controllers[-1].answer("run", DEAD)
    world.poll(20 * JOIN_S)
    assert len(world.ray.controllers) == 2
    assert world.ready == [0, 1]


def test_a_controller_that_takes_in_no_prepared_process_is_replaced(world: World) -> None:
    world.ray.admission = OPEN
    world.pool.start()
    world.poll()
    world.ray.admission = b"context"
    world.poll(FIRST_JOIN_S + HEARTBEAT_S)
    assert world.ray.controllers[0] in world.ray.killed
    assert (len(world.ray.controllers), world.ready) == (2, [0])


def test_a_new_process_does_not_wait_long_for_a_controller_that_hangs(world: World) -> None:
    world.seated(1)
    world.ray.controllers[0].answers["add_worker"] = OPEN
    world.pool.start()
    world.poll(JOIN_S + 2 * HEARTBEAT_S)
    assert world.ready == [0, 1]


def test_a_refused_process_asks_again(world: World) -> None:
    world.ray.admission = refused(ConnectionError("unreachable"))
    world.pool.start()
    world.poll()
    assert world.ready == []
    world.ray.controllers[0].answers["add_worker"] = b"context"
    world.poll(RETRY_S + HEARTBEAT_S)
    assert world.ready == [0]


def test_a_process_that_is_refused_again_and_again_trains_without_being_listed(
    world: World,
) -> None:
    world.ray.admission = refused(RuntimeError("never"))
    world.pool.start()
    world.poll(MAX_FAILED_JOINS * (RETRY_S + HEARTBEAT_S))
    assert world.ready == [0]
    assert len(world.ray.controllers[0].asked("add_worker")) == MAX_FAILED_JOINS


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (EndRecord(status="SUCCEEDED", reason="COMPLETED"), "finished"),
        (EndRecord(status="FAILED", reason="TASK_RAISED", message="why"), "errored"),
        (EndRecord(status="CANCELLED", reason="CANCELLED_BY_USER"), "aborted"),
        (PausedRecord(step=1, saved_step=1), "aborted"),
        (None, "errored"),
    ],
)
def test_ray_train_notes_how_the_attempt_ended(
    world: World, outcome: EndRecord | PausedRecord | None, ending: str
) -> None:
    world.seated(1)
    world.pool.close(outcome)
    [call] = world.ray.controllers[0].asked("end_run")
    assert call.arguments[0] == ending
    assert world.ray.controllers[0] in world.ray.killed


@pytest.mark.parametrize("release", ["2.54.1", "2.61.0", "3.0.0", "2.x", "3"])
def test_on_a_ray_that_was_not_tried_a_job_runs_on_plain_actors(
    tmp_path: Path, release: str
) -> None:
    asked = launch(tmp_path)
    chosen, why = choose_engine(asked, release)
    assert (chosen.spec.workers.engine, asked.spec.workers.engine) == ("actors", "ray-train")
    assert f"Ray {release} is installed, and the ray-train engine was tried with Ray 2.55" in why


@pytest.mark.parametrize("release", ["2.55.0", "2.60.7", "2.58.0rc1", ray.__version__])
def test_on_a_ray_that_was_tried_the_engine_is_that_of_the_job(
    tmp_path: Path, release: str
) -> None:
    asked = launch(tmp_path)
    assert choose_engine(asked, release) == (asked, "")
    actors, why = choose_engine(asked, "1.0")
    assert why
    assert choose_engine(actors, "1.0") == (actors, "")


def test_a_ray_without_what_ray_train_imports_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "pyarrow" else SimpleNamespace()
    )
    with pytest.raises(EngineUnavailable, match=r"needs pyarrow; pip install 'ray\[train\]"):
        check_ray_train()


def test_only_finite_reported_metrics_are_kept() -> None:
    metrics = {
        "loss": 0.5,
        "step": 3,
        7: 1.0,
        "huge": 10**400,
        "nan": float("nan"),
        "text": "7",
        "list": [1],
        "none": None,
    }
    assert keep_finite_numbers(metrics) == {"loss": 0.5, "step": 3.0, "7": 1.0}


def test_a_worker_is_told_its_place_in_the_group_and_on_its_node() -> None:
    assignment = GroupAssignment(
        generation=1,
        rank=3,
        world_size=4,
        store=("host", 1, ""),
        previous_group=None,
        peer_timeout_s=60.0,
        nodes=("a", "b", "a", "b"),
    )
    told = build_torchrun_env(assignment, "cpu")
    assert told == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }
    assert build_torchrun_env(assignment, "cuda:0")["LOCAL_RANK"] == "0"


def test_a_report_is_kept_for_the_epoch_and_a_warning_names_what_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerInRayTrain(launch(tmp_path).model_dump_json())
    for accuracy in (0.5, 0.75):
        worker.report({"accuracy": accuracy, "note": "text", 1: "text"}, has_checkpoint=True)
    assert worker._control.take_metrics() == {"accuracy": 0.75}
    assert worker._control.take_metrics() == {}
    kinds = ("only finite numbers are kept; left out: 1, note", "the checkpoint is not kept")
    assert [kind in record.message for kind, record in zip(kinds, caplog.records, strict=True)] == [
        True,
        True,
    ]


def test_an_epochs_record_holds_a_limited_number_of_reported_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerInRayTrain(launch(tmp_path).model_dump_json())
    worker.report(
        {f"layer{number}": number for number in range(MAX_METRICS + 2)}, has_checkpoint=False
    )
    worker.report({"layer0": 7.0}, has_checkpoint=False)
    kept = worker._control.take_metrics()
    assert (len(kept), kept["layer0"]) == (MAX_METRICS, 7.0)
    assert f"more are left out, such as layer{MAX_METRICS}" in caplog.text


def test_functions_of_ray_train_wait_for_nobody_in_a_process_without_a_group() -> None:
    reported: list[tuple[dict[str, Any], bool]] = []
    functions = TrainFunctions(
        lambda metrics, *, has_checkpoint: reported.append((metrics, has_checkpoint))
    )
    functions.report({"a": 1}, object())
    functions.barrier()
    assert reported == [({"a": 1}, True)]
    assert functions.broadcast_from_rank_zero("data") == "data"
    assert functions.get_checkpoint() is functions.get_preemption_info() is None
    assert functions.get_all_reported_checkpoints() == []
    with pytest.raises(CodeError, match="a job has no Ray Data shards, and 'train' was asked for"):
        functions.get_dataset_shard(SimpleNamespace(dataset_name="train"))
