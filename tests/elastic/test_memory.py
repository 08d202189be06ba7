"""A worker that leaks, on real Ray: it goes, and nothing else does."""

from __future__ import annotations

import pytest

from accordion_workers.records.contract import FailureRecord
from tests.elastic.conftest import Start

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]


def test_job_whose_worker_leaks_fails_as_out_of_memory_after_its_budget(start: Start) -> None:
    life = start(
        {
            "task": {
                "name": "tests.elastic.leaking:Leaks",
                "options": {"leak_bytes": 6_000_000, "min_step_s": 0.1},
            },
            "workers": {"min": 1, "max": 1, "memory": "1GB"},
            "max_failures": 1,
        },
        workers=1,
    )
    end = life.end()
    assert end.status == "FAILED", life.story()
    assert "out of memory (" in end.message
    assert "GB; workers.memory is 1." in end.message
    assert [failure.cause for failure in life.all(FailureRecord)] == ["job", "job"]
