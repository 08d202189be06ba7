"""The worker processes of an attempt as workers of a Ray Train run, over a Ray that answers what the test says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayTaskError

from tests.unit.workers.crew_world import World, crew_of
from tests.unit.workers.fake_ray import DEAD, OPEN
from tests.unit.workers.world import launch
from workers.contract import EndRecord, PausedRecord
from workers.crew import PULSE_S
from workers.errors import EngineUnavailable
from workers.ray_train import JOIN_S, MOST_FAILED_CONTROLLERS, RAY_SERIES, RETRY_S, RayTrainCrew, check_ray_train
from workers.ray_train_worker import WorkerInRayTrain, finite_numbers, torchrun_variables
from workers.worker import Seat


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return crew_of(monkeypatch, tmp_path, kind=RayTrainCrew)


def test_a_process_is_ready_once_it_is_prepared_and_part_of_the_run(world: World) -> None:
    world.ray.admission = OPEN
    world.crew.hire()
    world.look()
    assert world.ready == []
    world.ray.controllers[0].answer("admit", None)
    world.look()
    assert world.ready == [0]


def test_the_workers_train_on_when_the_controller_dies_and_join_the_next_one(world: World) -> None:
    members = world.seated(2)
    world.ray.controllers[0].answer("run", DEAD)
    world.look()
    assert world.numbers == [0, 1]
    assert not set(members) & set(world.ray.killed)
    assert [call.arguments[1] for call in world.ray.controllers[1].asked("admit")] == members
    assert world.crew.returned() == {}


def test_a_process_that_prepares_when_the_controller_dies_joins_the_next_one(world: World) -> None:
    actor = world.starting(prepare=OPEN)
    world.look()
    world.ray.controllers[0].die()
    actor.answer("prepare", None)
    world.look()
    assert world.ready == [0]
    assert len(world.ray.controllers[1].asked("admit")) == 1


def test_a_controller_that_lets_nobody_join_is_replaced(world: World) -> None:
    world.ray.admission = OPEN
    world.crew.hire()
    world.look()
    world.ray.admission = None
    world.look(JOIN_S + PULSE_S)
    assert world.ray.controllers[0] in world.ray.killed
    assert (len(world.ray.controllers), world.ready) == (2, [0])


def test_a_controller_that_always_fails_ends_the_attempt_with_its_error(world: World) -> None:
    error = RayTaskError("run", "", ModuleNotFoundError("No module named 'pyarrow'"))
    error.cause = ModuleNotFoundError("No module named 'pyarrow'")
    world.ray.admission = OPEN
    world.crew.hire()
    for _ in range(MOST_FAILED_CONTROLLERS - 1):
        world.look()
        world.ray.controllers[-1].answer("run", error)
        world.look(RETRY_S + PULSE_S)
    world.ray.controllers[-1].answer("run", error)
    with pytest.raises(EngineUnavailable, match=r"No module named 'pyarrow'; set workers\.engine to actors"):
        world.look()


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
    world.crew.close(outcome)
    [call] = world.ray.controllers[0].asked("conclude")
    assert call.arguments[0] == ending
    assert world.ray.controllers[0] in world.ray.killed


def test_another_version_of_ray_is_refused_with_both_versions_and_the_way_out() -> None:
    with pytest.raises(EngineUnavailable, match=rf"needs Ray {RAY_SERIES}\.\*, and 2\.61\.0 is installed.*actors"):
        check_ray_train("2.61.0")


def test_a_ray_without_what_ray_train_imports_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else SimpleNamespace())
    with pytest.raises(EngineUnavailable, match=r"needs pyarrow; pip install 'ray\[train\]"):
        check_ray_train(ray.__version__)


def test_of_reported_metrics_the_finite_numbers_are_kept() -> None:
    metrics = {"loss": 0.5, "step": 3, "nan": float("nan"), "text": "7", "list": [1], "none": None}
    assert finite_numbers(metrics) == {"loss": 0.5, "step": 3.0}


def test_a_worker_is_told_its_place_in_the_group_and_on_its_node() -> None:
    seat = Seat(
        generation=1,
        rank=3,
        world_size=4,
        store=("host", 1, ""),
        interruption=None,
        peer_timeout_s=60.0,
        nodes=("a", "b", "a", "b"),
    )
    told = torchrun_variables(seat)
    assert told == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}


def test_a_report_is_kept_for_the_epoch_and_a_warning_names_what_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerInRayTrain(launch(tmp_path).model_dump_json())
    for accuracy in (0.5, 0.75):
        worker.report({"accuracy": accuracy, "note": "text"}, has_checkpoint=True)
    assert worker._helm.take_metrics() == {"accuracy": 0.75}
    assert worker._helm.take_metrics() == {}
    kinds = ("only finite numbers are kept; left out: note", "the checkpoint is not kept")
    assert [kind in record.message for kind, record in zip(kinds, caplog.records, strict=True)] == [True, True]
