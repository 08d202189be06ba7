"""Jobs on real Ray whose packages only `pip` provides."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_workers.records.contract import EndRecord, PackagesRecord, PipIndex
from tests.elastic.conftest import Start, kill
from tests.elastic.faults import Watched, job
from tests.unit.workers.wheels import Index

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
"""Steps before a fault: three checkpoints are there."""
IDENTITY = "def identity(value):\n    return value\n"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index with a package of this test, whose content no cache has; what is installed from it
    is removed.
    """
    made = Index(tmp_path / "index")
    files = {"acc_alpha/identity.py": f"# {uuid.uuid4()}\n{IDENTITY}"}
    made.add("acc-alpha", "1.0", requires=["acc-beta", "packaging"], files=files)
    made.add("acc-beta", "2.0")
    yield made
    for place in tmp_path.glob("steps/package-*"):
        shutil.rmtree(Path(place.read_text().partition(" ")[2]).parents[1], ignore_errors=True)


def start_packaged(start: Start, tmp_path: Path, index: Index) -> Watched:
    folder = tmp_path / "steps"
    folder.mkdir()
    spec = job(folder, pip=["acc-alpha==1.0"])
    spec["task"]["name"] = "tests.elastic.packaged:PackagedDigits"
    return Watched(start(spec, pip_index=PipIndex(url=index.url)), folder)


def places(watched: Watched) -> set[str]:
    return {file.read_text() for file in watched.folder.glob("package-*")}


def test_a_job_survives_kills_with_the_packages_that_it_resolved_once(
    start: Start, tmp_path: Path, index: Index
) -> None:
    watched = start_packaged(start, tmp_path, index)
    watched.reach(AFTER)
    [record] = watched.life.all(PackagesRecord)
    assert [(one.name, one.version) for one in record.packages] == [
        ("acc-alpha", "1.0"),
        ("acc-beta", "2.0"),
    ]
    # From here on, nobody can resolve again.
    shutil.rmtree(index.folder)
    watched.fault()
    kill("ray::Worker")
    watched.wait_for_sizes(2, 2)
    watched.reach(AFTER + 30)
    watched.fault()
    kill("ray::Supervisor")
    watched.life.backend.start(watched.life.launch)
    watched.survived("worker and supervisor of a job with packages")
    assert watched.life.all(PackagesRecord) == [record]
    # All processes of the node have the package from one environment.
    [place] = places(watched)
    assert place.startswith("1.0 ")
    assert f"/accordion-packages-{os.getuid()}/" in place


def test_a_job_whose_package_does_not_exist_ends_before_any_worker(
    start: Start, tmp_path: Path, index: Index
) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    spec = job(folder, pip=["acc-alpha", "acc-nothing"])
    life = start(spec, pip_index=PipIndex(url=index.url))
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert "No matching distribution found for acc-nothing" in end.message
    assert [type(record.payload) for record in life.records] == [EndRecord]
