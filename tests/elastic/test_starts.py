"""Worker processes that do not come up as they should, on real Ray: the pool runs in this
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.common.errors import ProcessLost
from accordion_workers.controller import hang_detection
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.controller.worker_pool import WorkerPool, create_worker_pool
from accordion_workers.records.contract import Launch
from tests.elastic.conftest import everything_is_free, job_spec, processes, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
LIMIT_S = 5.0
"""Instead of two minutes; a process that only waits answers in milliseconds."""
LIMITS = {"answer_seconds": LIMIT_S}
Hanging = Callable[[str], WorkerPool]


@pytest.fixture
def hanging(
    backend: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hanging]:
    """A pool whose first process hangs in this way while it prepares; from then on the limit is a
    short one.
    """
    backend.nodes()
    pools: list[WorkerPool] = []

    def hire(way: str) -> WorkerPool:
        task = {
            "name": "tests.elastic.hanging:HangsOnce",
            "options": {"folder": str(tmp_path), "hang": way},
        }
        spec = job_spec({"task": task, "workers": {"min": 1, "max": 1}, "limits": LIMITS})
        launch = Launch(job_id="starts", attempt=1, workers=1, storage=str(tmp_path), spec=spec)
        pools.append(create_worker_pool(launch))
        pools[-1].start()
        look_until(pools[-1], (tmp_path / "hangs").exists)
        monkeypatch.setattr(hang_detection, "PREPARING_S", LIMIT_S)
        return pools[-1]

    yield hire
    for pool in pools:
        pool.close()
    wait_for(lambda: everything_is_free() and not processes("ray::Worker"))


def look_until(pool: WorkerPool, condition: Callable[[], object]) -> None:
    wait_for(lambda: (pool.poll(0.1), condition())[1])


def is_ready(pool: WorkerPool) -> bool:
    return any(one.ready_since is not None for one in pool.processes)


@pytest.mark.parametrize("way", ["stopped", "lock"])
def test_a_process_that_hangs_while_it_starts_is_ended_and_another_one_comes_up(
    hanging: Hanging, way: str
) -> None:
    pool = hanging(way)
    failed: list[FailedStart] = []
    look_until(pool, lambda: failed.extend(pool.take_failed_starts()) or failed)
    assert [type(one.error) for one in failed] == [ProcessLost]
    assert pool.processes == []
    wait_for(lambda: not processes("ray::Worker"))
    pool.start()
    look_until(pool, lambda: is_ready(pool))


def test_a_process_that_waits_for_the_network_while_it_starts_is_left_alone(
    hanging: Hanging, tmp_path: Path
) -> None:
    pool = hanging("network")
    begin = time.monotonic()
    look_until(pool, lambda: time.monotonic() - begin > 2 * LIMIT_S)
    [process] = pool.processes
    assert process.ready_since is None
    (tmp_path / "answer").touch()
    look_until(pool, lambda: is_ready(pool))
    assert pool.take_failed_starts() == []
    assert [one.number for one in pool.processes] == [process.number]
