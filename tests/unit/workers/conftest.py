"""A cluster without Ray for each test, and attempts without processes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch.distributed as dist

from accordion_workers.worker import process
from tests.unit.workers.attempt_world import World, worlds
from tests.unit.workers.world import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Makes an attempt whose groups end as the test says."""
    return worlds(tmp_path)


@pytest.fixture
def process_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a worker's until the end of the test, for what `Worker.prepare` changes."""
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(dist, name, getattr(dist, name))
    monkeypatch.setattr(process, "ship_logs", lambda *_: nullcontext())
    monkeypatch.chdir(Path.cwd())
    yield
    gc.unfreeze()
