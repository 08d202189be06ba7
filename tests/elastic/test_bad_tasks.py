"""Jobs whose own code fails in the same way every time, on real Ray: they end, and say who failed,
where and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.controller.failure_policy import MAX_DEATHS
from accordion_workers.records.contract import FailureRecord
from tests.elastic.conftest import Life, started_jobs

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
IDLE_S = 10.0
"""Instead of half an hour; a step of these jobs takes milliseconds."""


def bad(way: str, *, workers: int = 1, **parts: Any) -> dict[str, Any]:
    return {
        "task": {"name": "tests.elastic.bad_tasks:BadDigits", "options": {"way": way}},
        "workers": {"min": workers, "max": workers, "cpus": 0.1},
        "max_failures": 0,
        **parts,
    }


JOBS = {
    "exit while loading": bad("exit while loading", max_failures=5),
    "crash": bad("crash"),
    "interrupt": bad("interrupt"),
    "killed": bad("killed", workers=2),
    "unequal data": bad("unequal data", workers=2, max_failures=3),
    "hang": bad("hang", workers=2, limits={"step_seconds": IDLE_S}),
}


@pytest.fixture(scope="module")
def jobs(
    backend: RayBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Life]]:
    """One job for each way to fail, by that; they run beside each other."""
    with started_jobs(backend, tmp_path_factory.mktemp("bad")) as start:
        yield {way: start(spec, workers=spec["workers"]["max"]) for way, spec in JOBS.items()}


@pytest.mark.parametrize(
    ("way", "reason", "told"),
    [
        ("exit while loading", "TASK_RAISED", "os._exit(3) at bad_tasks.py:"),
        ("crash", "TASK_RAISED", ": the process crashed with segmentation fault at bad_tasks.py:"),
        (
            "interrupt",
            "TASK_RAISED",
            "rank 0: the task raised in step 3 (epoch 0): KeyboardInterrupt:  (bad_tasks.py:",
        ),
    ],
)
def test_a_task_that_ends_its_own_process_ends_the_job(
    jobs: dict[str, Life], way: str, reason: str, told: str
) -> None:
    end = jobs[way].end()
    assert (end.status, end.reason) == ("FAILED", reason)
    assert told in end.message
    assert {failure.cause for failure in jobs[way].all(FailureRecord)} == {"job"}
    assert len(jobs[way].all(FailureRecord)) == (2 if way == "exit while loading" else 1)


def test_a_process_that_is_killed_at_the_same_place_again_and_again_ends_the_job(
    jobs: dict[str, Life],
) -> None:
    end = jobs["killed"].end()
    assert (end.status, end.reason) == ("FAILED", "NO_PROGRESS")
    assert "the process of rank 0 is gone, in step 3: it was killed" in end.message
    # A group of a loaded machine may also be lost while it starts.
    deaths = [failure.process_died for failure in jobs["killed"].all(FailureRecord)]
    assert deaths.count(True) == MAX_DEATHS


def test_ranks_with_unequal_numbers_of_samples_end_the_job_at_once(jobs: dict[str, Life]) -> None:
    life = jobs["unequal data"]
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
    assert "rank 0 has 256 training samples" in end.message
    assert len(life.all(FailureRecord)) == 1


def test_a_group_whose_ranks_all_hang_in_the_evaluation_is_ended_with_their_lines(
    jobs: dict[str, Life],
) -> None:
    end = jobs["hang"].end()
    assert (end.status, end.reason) == ("FAILED", "TASK_RAISED")
    assert (
        f"no rank has made progress for {IDLE_S:g} s: rank 0 is at the end of epoch 0"
        in end.message
    )
    assert "rank 1 is at the end of epoch 0" in end.message
    assert end.message.count("(bad_tasks.py:") == 2
    assert "limits.step_seconds" in end.message
