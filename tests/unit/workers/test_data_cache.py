"""Data of a job on one node: fetched once, complete or not there, and never more than allowed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from accordion_workers.common.errors import DataFetchError
from accordion_workers.common.node_cache import UnsafeRootError, lock_entry, open_root
from accordion_workers.records.contract import DataCache, Launch
from accordion_workers.worker import data_cache
from accordion_workers.worker.data_cache import fetch_once, note_key, provide_data
from accordion_workers.worker.data_source import (
    RETRY_LIMIT_S,
    Listing,
    Pace,
    RemoteFile,
    list_files,
)
from tests.unit.workers.world import launch as launch_of


@dataclass
class Time:
    """Time that passes when somebody waits."""

    now: float = 0.0

    def pace(self) -> Pace:
        return Pace(clock=lambda: self.now, pause=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Remote:
    """A filesystem whose files a test makes up."""

    content: bytes = b"12345678"
    fetched: list[str] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    """Called before each request."""

    def get(self, paths: list[str], targets: list[str]) -> None:
        self.before()
        for path, target in zip(paths, targets, strict=True):
            Path(target).write_bytes(self.content)
            self.fetched.append(path)

    def listing(self, *names: str, version: str = "1") -> Listing:
        files = tuple(
            RemoteFile(path=f"b/{name}", name=name, size_bytes=8, version=version) for name in names
        )
        return Listing(location="s3://b", filesystem=self, files=files, is_file=False)


@pytest.fixture(autouse=True)
def spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_cache, "SPARE_BYTES", 0)


@pytest.fixture
def cache(tmp_path: Path) -> DataCache:
    return DataCache(folder=str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "deep" / "b [1].txt").write_text("bb")
    return folder


def job(tmp_path: Path, cache: DataCache, **data: str) -> Launch:
    found = launch_of(tmp_path / "job", data=data).model_copy(update={"data_cache": cache})
    Path(found.storage).mkdir(parents=True, exist_ok=True)
    return found


def test_the_files_of_a_url_are_fetched_with_their_folders(
    tmp_path: Path, cache: DataCache, source: Path
) -> None:
    found = provide_data(job(tmp_path, cache, train=f"file://{source}"))
    folder = Path(found["ACCORDION_DATA_TRAIN"])
    assert folder.is_relative_to(cache.folder)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"a.txt", "deep/b [1].txt"}
    assert (folder / "deep" / "b [1].txt").read_text() == "bb"


def test_a_url_may_name_one_file(tmp_path: Path, cache: DataCache, source: Path) -> None:
    found = provide_data(job(tmp_path, cache, words=f"file://{source}/a.txt"))
    assert Path(found["ACCORDION_DATA_WORDS"]).name == "a.txt"
    assert Path(found["ACCORDION_DATA_WORDS"]).read_text() == "a"


def test_a_path_is_used_where_it_is(tmp_path: Path, cache: DataCache, source: Path) -> None:
    found = provide_data(job(tmp_path, cache, train=str(source), word=str(source / "a.txt")))
    assert found == {
        "ACCORDION_DATA_TRAIN": str(source),
        "ACCORDION_DATA_WORD": str(source / "a.txt"),
    }
    assert not Path(cache.folder).exists()


def test_other_filesystems_of_fsspec_are_read(cache: DataCache) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/data-cache/x/1": b"1", "/data-cache/y": b"22"})
    try:
        listing = list_files("train", "memory://data-cache", Time().pace())
        folder = fetch_once("train", listing, cache, pace=Time().pace())
        assert ((folder / "x/1").read_bytes(), (folder / "y").read_bytes()) == (b"1", b"22")
    finally:
        memory.rm("/data-cache", recursive=True)


def test_files_are_fetched_once_for_all_jobs(cache: DataCache) -> None:
    remote = Remote()
    listing = remote.listing("a", "b")
    places = {fetch_once("train", listing, cache, pace=Time().pace()) for _ in range(3)}
    assert (len(places), remote.fetched) == (1, ["b/a", "b/b"])
    fetch_once("train", remote.listing("a", "b", version="2"), cache, pace=Time().pace())
    assert len(remote.fetched) == 4, "another version is fetched"


def test_workers_of_a_node_wait_for_the_one_that_fetches(cache: DataCache) -> None:
    started, finish = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert finish.wait(60)

    remote = Remote(before=block)
    places: list[Path] = []

    def get() -> None:
        places.append(fetch_once("train", remote.listing("a"), cache, pace=Pace()))

    threads = [threading.Thread(target=get) for _ in range(3)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    finish.set()
    for thread in threads:
        thread.join(60)
    assert (len(places), len(set(places)), remote.fetched) == (3, 1, ["b/a"])


def test_a_fetch_that_was_interrupted_is_made_anew(cache: DataCache) -> None:
    remote = Remote()

    def die() -> None:
        if remote.fetched:
            raise KeyboardInterrupt

    remote.before = die
    names = [f"{number:03}" for number in range(40)]  # two requests
    with pytest.raises(KeyboardInterrupt):
        fetch_once("train", remote.listing(*names), cache, pace=Time().pace())
    listing = remote.listing(*names)
    assert not (Path(cache.folder) / listing.key).exists(), "complete or not there"
    remote.before = lambda: None
    folder = fetch_once("train", listing, cache, pace=Time().pace())
    assert len(list(folder.iterdir())) == 40


def test_a_worker_waits_and_logs_it_however_long_another_one_fetches(
    cache: DataCache, caplog: pytest.LogCaptureFixture
) -> None:
    time, remote = Time(), Remote()

    def pass_hours() -> float:
        time.wait(8 * 3600.0)
        return time.now

    waiter = threading.Thread(
        target=fetch_once,
        args=("train", remote.listing("a"), cache),
        kwargs={"pace": Pace(clock=pass_hours)},
    )
    entry = open_root(Path(cache.folder)) / remote.listing("a").key
    with caplog.at_level("INFO"), lock_entry(entry, lambda: None):
        waiter.start()
        deadline = monotonic() + 60
        while caplog.text.count("data 'train': waiting for another worker") < 2:
            assert monotonic() < deadline
            sleep(0.01)
    waiter.join(60)
    assert remote.fetched == ["b/a"]


def test_a_file_that_was_removed_meanwhile_is_fetched_again(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_cache, "keep_in_use", lambda folder: None)  # as if processes had ended
    remote = Remote()
    folder = fetch_once("train", remote.listing("a", "b"), cache, pace=Time().pace())
    (folder / "a").unlink()
    assert (fetch_once("train", remote.listing("a", "b"), cache, pace=Time().pace()) / "a").exists()


def test_files_that_other_jobs_use_are_not_replaced(cache: DataCache) -> None:
    remote = Remote()
    folder = fetch_once("train", remote.listing("a", "b"), cache, pace=Time().pace())
    (folder / "a").unlink()
    with pytest.raises(DataFetchError, match="removed or changed while other workers"):
        fetch_once("train", remote.listing("a", "b"), cache, pace=Time().pace())
    assert (folder / "b").exists()


def test_fetched_files_cannot_be_written_by_mistake(cache: DataCache) -> None:
    folder = fetch_once("train", Remote().listing("a"), cache, pace=Time().pace())
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o444


def test_a_long_transfer_that_fails_is_repeated(cache: DataCache) -> None:
    time, remote = Time(), Remote()

    def fail_late() -> None:
        time.wait(2 * RETRY_LIMIT_S)
        if time.now < 3 * RETRY_LIMIT_S:
            raise ConnectionResetError("reset by peer")

    remote.before = fail_late
    fetch_once("train", remote.listing("a"), cache, pace=time.pace())
    assert remote.fetched == ["b/a"]


def test_a_location_that_does_not_respond_is_tried_for_a_while(cache: DataCache) -> None:
    time, remote = Time(), Remote()

    def fail() -> None:
        if time.now < 60.0:
            raise ConnectionResetError("reset by peer")

    remote.before = fail
    fetch_once("train", remote.listing("a"), cache, pace=time.pace())
    assert (remote.fetched, time.now >= 60.0) == (["b/a"], True)

    def stay_away() -> None:
        raise ConnectionResetError("reset by peer")

    remote.before = stay_away
    began = time.now
    with pytest.raises(DataFetchError, match="cannot be fetched: ConnectionResetError"):
        fetch_once("train", remote.listing("b"), cache, pace=time.pace())
    assert time.now - began >= RETRY_LIMIT_S


def test_a_file_that_arrives_in_part_is_fetched_again(cache: DataCache) -> None:
    remote = Remote(content=b"1234")
    time = Time()

    def complete() -> None:
        if time.now > 0:
            remote.content = b"12345678"

    remote.before = complete
    folder = fetch_once("train", remote.listing("a"), cache, pace=time.pace())
    assert (folder / "a").read_bytes() == b"12345678"


class NoCredentialsError(Exception):
    """Named as the error of botocore."""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileNotFoundError("b"), "there is nothing at s3://b"),
        (PermissionError("Access Denied"), "may not read s3://b .*give them credentials"),
        (NoCredentialsError("none"), "may not read s3://b .*give them credentials"),
        (OSError(errno.ENOSPC, "No space left"), "the disk of this node is full"),
        (ImportError("Install s3fs to access S3"), "Install s3fs.*install the package on the"),
    ],
)
def test_an_error_that_stays_is_reported_at_once(
    cache: DataCache, error: Exception, sentence: str
) -> None:
    time, remote = Time(), Remote()

    def fail() -> None:
        raise error

    remote.before = fail
    with pytest.raises(DataFetchError, match=f"data 'train': .*{sentence}"):
        fetch_once("train", remote.listing("a"), cache, pace=time.pace())
    assert time.now == 0.0
    assert [path.suffix for path in Path(cache.folder).iterdir() if path.suffix != ".lock"] == []


def test_a_missing_location_is_named(tmp_path: Path, cache: DataCache) -> None:
    with pytest.raises(DataFetchError, match=f"data 'train': there .* at file://{tmp_path}/none"):
        provide_data(job(tmp_path, cache, train=f"file://{tmp_path}/none"))
    with pytest.raises(DataFetchError, match=r"none cannot be used on this node .*No such file"):
        provide_data(job(tmp_path, cache, train=f"{tmp_path}/none"))


def test_names_that_lead_out_of_the_directory_are_refused(cache: DataCache) -> None:
    for name in ("../x", "a//b", "a/../../b", "/etc/x", "."):
        with pytest.raises(
            DataFetchError, match=r"data 'train': the object name .* is not a valid rel"
        ):
            fetch_once("train", Remote().listing(name), cache, pace=Time().pace())


def test_a_job_gets_the_same_files_in_all_attempts(
    tmp_path: Path, cache: DataCache, source: Path
) -> None:
    launch = job(tmp_path, cache, train=f"file://{source}")
    found = provide_data(launch)
    (source / "a.txt").write_text("changed")
    assert provide_data(launch) == found
    node = DataCache(folder=str(tmp_path / "another-node"))
    with pytest.raises(DataFetchError, match=r"have changed since the job began.*clone the job"):
        provide_data(launch.model_copy(update={"data_cache": node}))


def test_all_processes_note_the_same_key(tmp_path: Path) -> None:
    note = tmp_path / "data-train.key"
    assert [note_key(note, key) for key in ("1", "2")] == ["1", "1"]
    assert list(tmp_path.iterdir()) == [note]


def test_data_that_could_not_be_fetched_may_be_repaired(
    tmp_path: Path, cache: DataCache, source: Path
) -> None:
    (source / "b").symlink_to(source / "deep")
    launch = job(tmp_path, cache, train=f"file://{source}")
    with pytest.raises(DataFetchError, match="b is a link to a directory"):
        provide_data(launch)
    (source / "b").unlink()
    (source / "a.txt").write_text("repaired")
    folder = Path(provide_data(launch)["ACCORDION_DATA_TRAIN"])
    assert (folder / "a.txt").read_text() == "repaired"


def test_a_node_that_has_the_data_needs_no_remote(
    tmp_path: Path, cache: DataCache, source: Path
) -> None:
    launch = job(tmp_path, cache, train=f"file://{source}", word=f"file://{source}/a.txt")
    found = provide_data(launch)
    shutil.rmtree(source)
    assert provide_data(launch) == found


def test_data_that_are_larger_than_the_limit_are_refused(cache: DataCache) -> None:
    small = cache.model_copy(update={"max_bytes": 10})
    with pytest.raises(DataFetchError, match="ACCORDION_DATA_CACHE_BYTES"):
        fetch_once("train", Remote().listing("a", "b"), small, pace=Time().pace())


def test_what_was_used_least_recently_makes_room(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_cache, "keep_in_use", lambda folder: None)  # as if processes had ended
    small, remote = cache.model_copy(update={"max_bytes": 20}), Remote()
    first, second = (
        fetch_once("train", remote.listing(name), small, pace=Time().pace()) for name in ("a", "b")
    )
    os.utime(first.parent, (2, 2))
    os.utime(second.parent, (1, 1))
    third = fetch_once("train", remote.listing("c"), small, pace=Time().pace())
    assert (first.exists(), second.exists(), third.exists()) == (True, False, True)


def test_what_processes_use_is_not_removed(cache: DataCache) -> None:
    small, remote = cache.model_copy(update={"max_bytes": 10}), Remote()
    used = fetch_once("train", remote.listing("a"), small, pace=Time().pace())
    with pytest.raises(DataFetchError, match=r"this node has no room.*jobs use 8e-09 GB"):
        fetch_once("train", remote.listing("b"), small, pace=Time().pace())
    assert used.exists()


def test_what_other_fetches_still_need_is_not_free(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20))
    remote, errors = Remote(), list[str]()

    def fetch_another() -> None:
        remote.before = lambda: None
        try:
            fetch_once("eval", remote.listing("c"), cache, pace=Time().pace())
        except DataFetchError as error:
            errors.append(str(error))

    remote.before = fetch_another
    fetch_once("train", remote.listing("a", "b"), cache, pace=Time().pace())
    assert len(errors) == 1
    assert "has no room: 4e-09 GB of the disk" in errors[0]


def test_what_has_no_note_is_counted_and_removed(cache: DataCache) -> None:
    small = cache.model_copy(update={"max_bytes": 10})
    old = open_root(Path(cache.folder)) / "old"
    old.mkdir()
    (old / "x").write_bytes(b"12345678")
    fetch_once("train", Remote().listing("a"), small, pace=Time().pace())
    assert not old.exists()


def test_an_error_of_the_own_disk_is_that_of_the_node(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(data_cache, "keep_in_use", fail)
    with pytest.raises(DataFetchError, match=r"cache of this node fails: .*Input"):
        fetch_once("train", Remote().listing("a"), cache, pace=Time().pace())


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    remote = Remote()
    with pytest.raises(DataFetchError, match="has no room: 7e-09 GB of the disk"):
        fetch_once("train", remote.listing("a"), cache, pace=Time().pace())
    assert remote.fetched == []


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(UnsafeRootError, match="only user"):
        open_root(open_folder)
    with pytest.raises(DataFetchError, match="the cache of this node fails"):
        fetch_once(
            "train", Remote().listing("a"), DataCache(folder=str(open_folder)), pace=Time().pace()
        )
