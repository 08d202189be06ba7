"""Processes of one test end with it, also if one has failed and others wait for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

FOREVER_S = 60
"""Longer than the test may take."""


def fail_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise KeyError("rank 1")
    threading.Event().wait(FOREVER_S)


def test_a_failure_ends_processes_that_would_wait_for_the_one_that_failed(run_new: Any) -> None:
    started_s = time.monotonic()
    with pytest.raises(KeyError, match="rank 1"):
        run_new(2, fail_on_rank_1)
    assert time.monotonic() - started_s < FOREVER_S
