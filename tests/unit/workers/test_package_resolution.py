"""Packages of a job are resolved once, beside what is installed, from an index made by the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.wheels import Index, IndexServer, serve_index, sha256_of
from tests.unit.workers.world import launch
from workers.contract import Package, PackagesRecord, PipIndex
from workers.controller.package_resolution import (
    OUTAGE_LIMIT_S,
    RESOLVE_LIMIT_S,
    ResolutionHost,
    ResolutionStopped,
    resolve_packages,
)
from workers.errors import PackagesError
from workers.user_code.packages import packages_folder, read_resolution

PACKAGING = version("packaging")
"""Version of a package that every machine with these tests has."""


@dataclass
class Job:
    """A job whose packages are resolved, and what its supervisor was told."""

    storage: Path
    url: str
    said: list[str] = field(default_factory=list)
    records: list[PackagesRecord] = field(default_factory=list)
    is_stopping: Callable[[], bool] = lambda: False
    write_record: Callable[[PackagesRecord], Any] | None = None

    def resolve(self, *pip: str, **named: Any) -> None:
        job = launch(self.storage, pip=pip)
        host = ResolutionHost(
            is_stopping=lambda: self.is_stopping(),
            publish_status=self.said.append,
            write_record=self.write_record or self.records.append,
        )
        index = PipIndex(url=self.url)
        resolve_packages(job.model_copy(update={"pip_index": index}), host, **named)

    @property
    def versions(self) -> dict[str, str]:
        found = read_resolution(self.storage)
        assert found is not None
        return {wheel.name: wheel.version for wheel in found.wheels}

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.storage.iterdir())


@pytest.fixture
def index(tmp_path: Path) -> Index:
    made = Index(tmp_path / "index")
    made.add("acc-alpha", requires=["acc-beta>=2", "packaging"])
    made.add("acc-beta", "1.0")
    made.add("acc-beta", "2.0")
    return made


@pytest.fixture
def job(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    # What this machine has configured for pip does not count, and failures are told at once.
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job").mkdir()
    return Job(tmp_path / "job", index.url)


@pytest.fixture
def server(index: Index) -> Iterator[IndexServer]:
    with serve_index(index.folder) as server:
        yield server


def test_what_workers_lack_is_downloaded_with_its_hashes_and_recorded(
    job: Job, index: Index
) -> None:
    job.resolve("acc-alpha==1.0")
    found = read_resolution(job.storage)
    assert found is not None
    files = index.folder / "files"
    wheels = [files / f"acc_{name}-py3-none-any.whl" for name in ("alpha-1.0", "beta-2.0")]
    assert job.versions == {"acc-alpha": "1.0", "acc-beta": "2.0"}
    assert [wheel.sha256 for wheel in found.wheels] == [sha256_of(wheel) for wheel in wheels]
    assert found.size_bytes == sum(wheel.stat().st_size for wheel in wheels)
    [record] = job.records
    assert record.packages == (
        Package(name="acc-alpha", version="1.0"),
        Package(name="acc-beta", version="2.0"),
    )
    assert (record.size_bytes, record.seconds) == (found.size_bytes, found.seconds)
    assert job.said == ["resolving the packages of the job: acc-alpha==1.0"]
    assert job.left == ["packages"]


def test_packages_that_the_workers_have_are_not_downloaded(job: Job) -> None:
    job.resolve("packaging", "acc-beta; python_version < '3'")
    assert job.versions == {}
    assert job.records[0].packages == ()


def test_a_job_is_resolved_once_whatever_its_index_has_later(job: Job, index: Index) -> None:
    job.resolve("acc-beta")
    index.add("acc-beta", "3.0")
    job.resolve("acc-beta")
    shutil.rmtree(index.folder)
    job.resolve("acc-beta")
    assert job.versions == {"acc-beta": "2.0"}
    assert len(job.records) == 1


def refusal(job: Job, *pip: str, **named: Any) -> str:
    with pytest.raises(PackagesError) as caught:
        job.resolve(*pip, **named)
    assert (job.left, job.records) == ([], [])
    return str(caught.value)


def test_a_requirement_that_would_replace_an_installed_package_is_refused(job: Job) -> None:
    assert refusal(job, "acc-alpha", "Packaging<2") == (
        f"the job asks for Packaging<2, and Packaging {PACKAGING} belongs to the workers' own"
        f" environment, which a job cannot change; ask for Packaging=={PACKAGING}, or leave it out"
    )


def test_a_package_that_needs_another_version_of_an_installed_one_is_refused(
    job: Job, index: Index
) -> None:
    index.add("acc-old", requires=["packaging<2"])
    said = refusal(job, "acc-old")
    assert "acc-old 1.0 depends on packaging<2" in said
    assert f"(constraint) packaging=={PACKAGING}" in said


def test_a_package_without_a_wheel_is_refused(job: Job, index: Index) -> None:
    page = index.folder / "simple" / "acc-source" / "index.html"
    page.parent.mkdir()
    page.write_text('<a href="../../files/acc-source-1.0.tar.gz">acc-source-1.0.tar.gz</a>')
    said = refusal(job, "acc-source")
    assert "No matching distribution found for acc-source" in said
    assert said.endswith("packages are installed from wheels only, so build one if there is none")


def test_a_stop_ends_pip_and_leaves_nothing(job: Job, server: IndexServer) -> None:
    server.answering.clear()
    job.url, job.is_stopping = server.url(), server.asked.is_set
    with pytest.raises(ResolutionStopped):
        job.resolve("acc-alpha")
    assert (job.left, job.records) == ([], [])


def test_an_index_that_answers_too_slowly_is_given_up(job: Job, server: IndexServer) -> None:
    server.answering.clear()
    job.url = server.url()
    said = refusal(
        job, "acc-alpha", clock=lambda: RESOLVE_LIMIT_S if server.asked.is_set() else 0.0
    )
    assert said.startswith("the packages of the job were not resolved within 1800 s; give exact")


def test_an_index_that_does_not_respond_is_asked_again(job: Job, server: IndexServer) -> None:
    server.is_down, job.url = True, server.url()

    def come_back(_: float) -> None:
        server.is_down = False

    job.resolve("acc-beta", pause=come_back)
    assert job.versions == {"acc-beta": "2.0"}
    assert "the package index does not respond; pip asks again in 10 s" in job.said[1]


def test_an_index_that_stays_away_ends_the_job(job: Job, server: IndexServer) -> None:
    server.is_down, job.url = True, server.url()
    times = [0.0]
    said = refusal(
        job,
        "acc-beta",
        clock=lambda: times[-1],
        pause=lambda _: times.append(OUTAGE_LIMIT_S),
    )
    assert "the package index has not responded for 300 s" in said
    assert said.endswith("check that the head node reaches it, then retry the job")


def test_a_login_of_the_index_is_used_and_told_to_nobody(
    job: Job, server: IndexServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.login = "ada:s3cret-of-ada"
    job.url = server.url("ada:wr0ng-of-ada")
    said = refusal(job, "acc-beta")
    told = f"{said} {caplog.text} {job.said}"
    assert "No matching distribution found for acc-beta" in told
    assert "wr0ng" not in told
    job.url = server.url(server.login)
    job.resolve("acc-beta")
    files = [path for path in packages_folder(job.storage).rglob("*") if path.is_file()]
    assert len(files) == 2
    assert all(b"s3cret" not in path.read_bytes() for path in files)


def test_what_a_killed_supervisor_left_is_removed(job: Job) -> None:
    left = job.storage / "packages.new-0"
    (left / "wheels").mkdir(parents=True)
    job.resolve("acc-beta")
    assert job.left == ["packages"]


def test_a_resolution_whose_record_cannot_be_written_is_made_again(job: Job) -> None:
    def fail(_: PackagesRecord) -> None:
        raise OSError("No space left on device")

    job.write_record = fail
    with pytest.raises(OSError, match="No space left"):
        job.resolve("acc-beta")
    assert job.left == []
    job.write_record = None
    job.resolve("acc-beta")
    assert len(job.records) == 1
