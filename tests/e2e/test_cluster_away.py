"""A scheduler's connection to Ray outlives the cluster: GCS comes back, or another cluster stands
at its address.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.elastic.nodes import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]
ASKS_FOR_EVER = """
import sys, time
from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.ray_backend import RayBackend

backend = RayBackend(address=sys.argv[1])
while True:
    try:
        print("nodes", *[node.id for node in backend.nodes() if node.alive], flush=True)
    except RuntimeUnavailable as error:
        print("away", error, flush=True)
    time.sleep(1)
"""


class Replaced(Cluster):
    """A cluster in whose place another one is put."""

    def replace(self) -> None:
        """Another head at the same address: nothing of the old one is left."""
        self._end_all()
        self._begin_head(int(self.address.rpartition(":")[2]))


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Replaced]:
    with Replaced(durable=request.param == "durable") as cluster:
        yield cluster


@pytest.fixture
def says(cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """Reads what a process says that asks the cluster again and again, up to a line that
    begins so.
    """
    command = [sys.executable, "-c", ASKS_FOR_EVER, cluster.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read(start: str) -> str:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"it ended with status {process.wait()}: {''.join(lines[-20:])}")

    yield read
    process.kill()
    process.wait()


@pytest.mark.parametrize("cluster", ["durable"], indirect=True)
def test_gcs_that_comes_back_is_found_again(cluster: Replaced, says: Callable[[str], str]) -> None:
    before = says("nodes")
    start_again = cluster.kill_gcs()
    assert "does not respond" in says("away")
    start_again()
    assert says("nodes") == before


@pytest.mark.parametrize("cluster", ["in memory"], indirect=True)
def test_another_cluster_at_the_address_is_found_too(
    cluster: Replaced, says: Callable[[str], str]
) -> None:
    before = says("nodes")
    cluster.kill_gcs()
    says("away")
    cluster.replace()
    assert says("nodes") != before
