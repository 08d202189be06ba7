"""Packages of a job are resolved once, beside what is installed, from an index made by the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import InvalidWheelFilename

from accordion_workers.common.errors import PackagesError
from accordion_workers.common.secret_mask import mask_url_logins
from accordion_workers.controller import package_resolution
from accordion_workers.controller.package_resolution import (
    OUTAGE_LIMIT_S,
    RESOLVE_LIMIT_S,
    ResolutionHost,
    ResolutionStopped,
    resolve_packages,
)
from accordion_workers.records.contract import Package, PackagesRecord, PipIndex
from accordion_workers.user_code.pip_process import PipFailure
from accordion_workers.user_code.resolution import packages_folder, read_resolution
from tests.unit.workers.wheels import Index, IndexServer, serve_index, sha256_of
from tests.unit.workers.world import launch

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
    [record] = job.records
    assert record.size_bytes == sum(wheel.stat().st_size for wheel in wheels)
    assert record.packages == (
        Package(name="acc-alpha", version="1.0"),
        Package(name="acc-beta", version="2.0"),
    )
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
    assert "the package index does not respond; retrying in 10 s" in job.said[1]


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


def test_an_index_that_breaks_off_a_download_is_asked_again(job: Job, server: IndexServer) -> None:
    server.is_cut, job.url = True, server.url()

    def come_back(_: float) -> None:
        server.is_cut = False

    job.resolve("acc-beta", pause=come_back)
    assert job.versions == {"acc-beta": "2.0"}
    assert "the package index does not respond; retrying in 10 s" in job.said[1]


BUSY = "503 Server Error: Service Unavailable for url: http://a.example/simple"
NO_ALPHA = "ERROR: No matching distribution found for acc.Alpha>=1\n"


@pytest.mark.parametrize(
    ("output", "log", "is_outage"),
    [
        # A request that was answered the second time is no outage.
        (f"WARNING: Retrying (Retry(total=4)): Read timed out.\n{NO_ALPHA}", "", False),
        (NO_ALPHA, f"Could not fetch URL http://a.example/simple/acc-alpha/: {BUSY}", True),
        (NO_ALPHA, f"Could not fetch URL http://a.example/simple/acc-beta/: {BUSY}", False),
        (NO_ALPHA, "Could not fetch URL http://a.example/acc-alpha/: 404 Client Error: No", False),
        (NO_ALPHA, "Could not fetch URL http://a.example/acc-alpha/: 429 Client Error: No", True),
        ("ERROR: HTTP error 429 while getting http://a.example/a.whl\n", "", True),
        ("ERROR: HTTP error 404 while getting http://a.example/a.whl\n", "", False),
        ("ERROR: Exception:\nurllib3.exceptions.ProtocolError: ('Connection broken')\n", "", True),
        ("ERROR: Exception:\nIncompleteRead(5 bytes read, 9 more expected)\n", "", True),
        ("WARNING: Read timed out.\nERROR: ResolutionImpossible\n", "", False),
    ],
)
def test_only_what_ended_pip_counts_as_an_outage(output: str, log: str, is_outage: bool) -> None:
    assert PipFailure(output=output, log=log).is_outage is is_outage


def test_logins_of_urls_are_masked() -> None:
    text = "Looking in indexes: https://ada:s3cret@a.example/simple, http://t0ken@b.example:80/x"
    assert mask_url_logins(text) == (
        "Looking in indexes: https://***@a.example/simple, http://***@b.example:80/x"
    )


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


def test_a_stop_counts_before_the_storage_is_read(job: Job) -> None:
    job.is_stopping = lambda: True
    job.storage = job.storage / "gone"
    with pytest.raises(ResolutionStopped):
        job.resolve("acc-beta")


def test_a_torn_resolution_is_made_again(job: Job) -> None:
    packages_folder(job.storage).mkdir(parents=True)
    (packages_folder(job.storage) / "resolution.json").write_text("")
    job.resolve("acc-beta")
    assert job.versions == {"acc-beta": "2.0"}
    assert job.left == ["packages"]


def test_packages_without_a_name_or_version_are_no_constraints(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"acc_a-1.dist-info": "", "acc_b-1.dist-info": "Name: acc-b\n"}.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "METADATA").write_text(content)
    (tmp_path / "site" / "acc_c-1.dist-info").mkdir()
    # Loading the backport, as some packages do, replaces how metadata is read.
    import_module("importlib_metadata")
    monkeypatch.syspath_prepend(tmp_path / "site")
    job.resolve("acc-beta")
    assert job.versions == {"acc-beta": "2.0"}


def test_a_file_that_is_no_wheel_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(file: str) -> None:
        raise InvalidWheelFilename(f"Invalid wheel filename: {file!r}")

    monkeypatch.setattr(package_resolution, "parse_wheel_filename", parse)
    assert "(InvalidWheelFilename: Invalid wheel filename:" in refusal(job, "acc-beta")
