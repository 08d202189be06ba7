"""Jobs whose own code fails in the same way every time, on real Ray: they end, and say who failed, where and why."""

from __future__ import annotations

from typing import Any

import pytest

from tests.elastic.conftest import Start
from workers.contract import FailureRecord, Started

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(600)]


def bad(way: str, **parts: Any) -> dict[str, Any]:
    return {
        "task": {"name": "tests.elastic.bad_tasks:BadDigits", "options": {"way": way}},
        "workers": {"min": 2, "max": 2},
        "max_failures": 1,
        **parts,
    }


@pytest.mark.parametrize(
    ("way", "reason", "told"),
    [
        ("exit while loading", "TOO_MANY_FAILURES", "os._exit(3) at bad_tasks.py:"),
        ("crash", "TASK_RAISED", "rank 0, in step 3: the process crashed with segmentation fault at bad_tasks.py:"),
        ("interrupt", "TASK_RAISED", "rank 0: the task raised in step 3 (epoch 0): KeyboardInterrupt:  (bad_tasks.py:"),
    ],
)
def test_a_task_that_ends_its_own_process_ends_the_job(start: Start, way: str, reason: str, told: str) -> None:
    life = start(bad(way))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", reason)
    assert told in end.message
    assert [failure.cause for failure in life.all(FailureRecord)] == ["job", "job"]


def test_a_process_that_is_killed_at_the_same_place_again_and_again_ends_the_job(start: Start) -> None:
    life = start(bad("killed"))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "NO_PROGRESS")
    assert "the process of rank 0 is gone, in step 3: it was killed" in end.message
    assert len(life.all(Started)) == 6
