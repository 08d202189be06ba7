"""A cluster without Ray for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.workers.world import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()
