"""What a job on Ray survives, and how it ends when it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion.messages import Override
from tests.elastic.conftest import Life, Start, everything_is_free, kill, place, processes, wait_for
from tests.elastic.watched import let_go
from workers.contract import AcksRecord, CheckpointRecord, DesiredState, FailureRecord, Started

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]
EPOCHS = 8
HOLD_FROM = 160
"""Step in the last epoch but one, from which a job is held until it is let go."""
SMALL: dict[str, Any] = {"name": "synthetic", "options": {"samples": 256, "width": 16}}
_UNDISTURBED: dict[str, list[Any]] = {}


def digits(folder: Path) -> dict[str, Any]:
    """About five seconds of training, with regimes that change at epoch 6; it does not end before
    it is let go.
    """
    options = {"hidden": 32, "folder": str(folder), "pace_s": 0.02, "hold_from": HOLD_FROM}
    return {
        "task": {"name": "tests.elastic.watched:WatchedDigits", "options": options},
        "training": {"epochs": EPOCHS, "lr_decay": {"at": [6]}},
        "workers": {"min": 2, "max": 2},
    }


@pytest.fixture
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the job's training looks like when nothing happens to it; run once."""
    if not _UNDISTURBED:
        folder = tmp_path_factory.mktemp("undisturbed")
        let_go(folder)
        life = start(digits(folder))
        assert life.end().reason == "COMPLETED"
        _UNDISTURBED["training"] = life.training
        # its processes are not those that the test looks for.
        life.backend.remove(life.launch.job_id)
        wait_for(lambda: not processes("ray::Supervisor"))
    return _UNDISTURBED["training"]


def broken(**options: int) -> dict[str, Any]:
    return {
        "task": {**SMALL, "options": {**SMALL["options"], **options}},
        "training": {"epochs": 3},
    }


def overridden(life: Life) -> list[AcksRecord]:
    """What the workers said under the override `o1`."""
    return [acks for acks in life.all(AcksRecord) if acks.override_ids == ("o1",)]


def words(life: Life) -> set[str]:
    """Parts of a traceback that the job's log holds."""
    text = "\n".join(line.text for line in life.logs)
    return {word for word in ("Traceback", "synthetic.py") if word in text}


def causes(life: Life) -> list[str]:
    return [failure.cause for failure in life.all(FailureRecord)]


def came_once_and_in_order(life: Life) -> bool:
    """What the scheduler was given, and none of it missing."""
    places = [place(record) for record in life.records]
    held = [
        place(record)
        for record in life.backend.history(life.launch.job_id, life.launch.storage).records
    ]
    return places == sorted(set(places)) == held


def test_a_killed_worker_costs_nothing_but_time(
    start: Start, undisturbed: list[Any], tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.reach(2)
    kill("ray::Worker")
    let_go(tmp_path)
    assert life.end().reason == "COMPLETED"
    assert causes(life) == ["infrastructure"]
    assert came_once_and_in_order(life)
    assert life.training == undisturbed


def test_a_killed_supervisor_comes_back_and_the_job_goes_on(
    start: Start, undisturbed: list[Any], tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.reach(2)
    kill("ray::Supervisor")
    let_go(tmp_path)
    assert life.end().reason == "COMPLETED"
    assert (
        len({record.generation for record in life.records if isinstance(record.payload, Started)})
        == 2
    )
    assert life.training == undisturbed
    wait_for(everything_is_free)


def test_a_killed_accordion_actor_changes_no_decision(
    start: Start, undisturbed: list[Any], tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.reach(2)
    kill("ray::AccordionActor")
    let_go(tmp_path)
    assert life.end().reason == "COMPLETED"
    assert causes(life) == []
    assert came_once_and_in_order(life)
    assert life.training == undisturbed


def test_overrides_reach_the_workers_through_an_actor_that_was_killed(
    start: Start, tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.reach(1)
    kill("ray::AccordionActor")
    life.order(
        DesiredState(version=1, overrides=(Override(id="o1", level={"method": "none"}, number=1),))
    )
    wait_for(lambda: life.look() or overridden(life))
    acks = overridden(life)[0]
    assert {(ack.rank, ack.digest) for ack in acks.acks} == {
        (rank, acks.digest) for rank in range(2)
    }


def test_a_task_that_raises_ends_the_job_with_its_sentence(start: Start) -> None:
    life = start(broken(raise_at_step=3))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
    assert "in step 3 (epoch 0)" in end.message
    assert "raise_at_step asks for an error" in end.message
    assert causes(life) == ["job", "job"]
    wait_for(lambda: life.drain() and {"Traceback", "synthetic.py"} <= words(life))


def test_a_loss_that_stays_not_finite_ends_the_job_at_once(start: Start) -> None:
    life = start(broken(nan_at_step=2))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "LOSS_NOT_FINITE")
    assert causes(life) == ["job"]


def test_a_cancelled_job_saves_and_ends(start: Start, tmp_path: Path) -> None:
    life = start(digits(tmp_path))
    life.reach(1)
    life.order(DesiredState(version=1, stop="cancel"))
    assert life.end().status == "CANCELLED"
    assert max(life.epochs) < EPOCHS - 1
    assert life.all(CheckpointRecord)[-1].step == life.records[-2].payload.step


def test_a_job_cancelled_while_it_starts_ends_without_training_on(
    start: Start, tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.order(DesiredState(version=1, stop="cancel"))
    assert life.end().status == "CANCELLED"
    assert life.epochs == {}


def test_nothing_of_the_drivers_environment_reaches_the_workers(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCORDION_DATABASE_URL", "postgresql://secret")
    life = start(digits(tmp_path))
    life.reach(0)
    for title in ("ray::Worker", "ray::Supervisor"):
        found = processes(title)
        assert found
        for pid in found:
            assert b"postgresql://secret" not in Path(f"/proc/{pid}/environ").read_bytes()
