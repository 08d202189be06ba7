"""How a job on real Ray ends: cancelled, or by an error of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion.base.messages import Override
from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import (
    AcksRecord,
    CheckpointRecord,
    DesiredState,
    EndRecord,
    FailureRecord,
)
from tests.elastic.conftest import Life, Start, kill, processes, started_jobs, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
EPOCHS = 4
HOLD_FROM = 60
"""Step in the last epoch but one, from which a job is held until it is let go."""
SMALL: dict[str, Any] = {"name": "synthetic", "options": {"samples": 256, "width": 16}}
SECRET = "postgresql://secret"


def digits(folder: Path) -> dict[str, Any]:
    """Spec of a job of two workers that does not end by itself within minutes."""
    options = {"hidden": 32, "folder": str(folder), "pace_s": 0.02, "hold_from": HOLD_FROM}
    return {
        "task": {"name": "tests.elastic.watched:WatchedDigits", "options": options},
        "training": {"epochs": EPOCHS},
        "workers": {"min": 2, "max": 2},
    }


def broken(**options: int) -> dict[str, Any]:
    return {
        "task": {**SMALL, "options": {**SMALL["options"], **options}},
        "training": {"epochs": 3},
    }


def overridden(life: Life) -> list[AcksRecord]:
    """What the workers said under the override `o1`."""
    return [acks for acks in life.all(AcksRecord) if acks.override_ids == ("o1",)]


def traceback_words(life: Life) -> set[str]:
    """Parts of a traceback that the job's log holds."""
    text = "\n".join(line.text for line in life.logs)
    return {word for word in ("Traceback", "synthetic.py") if word in text}


def causes(life: Life) -> list[str]:
    return [failure.cause for failure in life.all(FailureRecord)]


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
    wait_for(lambda: life.drain() and {"Traceback", "synthetic.py"} <= traceback_words(life))


def test_a_loss_that_stays_not_finite_ends_the_job_at_once(start: Start) -> None:
    life = start(broken(nan_at_step=2))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "LOSS_NOT_FINITE")
    assert causes(life) == ["job"]


@pytest.fixture(scope="module")
def cancelled(
    backend: RayBackend, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Life, list[bytes]]:
    """A job that was cancelled in mid-run, and the environments that its processes had."""
    folder = tmp_path_factory.mktemp("cancelled")
    with pytest.MonkeyPatch.context() as patch, started_jobs(backend, folder) as start:
        patch.setenv("ACCORDION_DATABASE_URL", SECRET)
        life = start(digits(folder))
        life.reach(1)
        workers, supervisors = processes("ray::Worker"), processes("ray::Supervisor")
        assert workers
        assert supervisors
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in workers + supervisors]
        life.order(DesiredState(version=1, stop="cancel"))
        life.end()
    return life, environments


def test_a_cancelled_job_saves_and_ends(cancelled: tuple[Life, list[bytes]]) -> None:
    life, _ = cancelled
    [end] = life.all(EndRecord)
    assert end.status == "CANCELLED"
    assert max(life.epochs) < EPOCHS - 1
    assert life.all(CheckpointRecord)[-1].step == life.records[-2].payload.step


def test_nothing_of_the_drivers_environment_reaches_the_workers(
    cancelled: tuple[Life, list[bytes]],
) -> None:
    _, environments = cancelled
    assert not any(SECRET.encode() in environment for environment in environments)


def test_a_job_cancelled_while_it_starts_ends_without_training_on(
    start: Start, tmp_path: Path
) -> None:
    life = start(digits(tmp_path))
    life.order(DesiredState(version=1, stop="cancel"))
    assert life.end().status == "CANCELLED"
    assert life.epochs == {}
