"""A cluster without Ray for each test, and attempts without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
