"""What `accordion doctor` says about the storages of jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from accordion_client.commands import storage_check
from accordion_client.commands.findings import Finding
from accordion_client.commands.storage_check import (
    MAX_NEWEST,
    MAX_STORAGES,
    MAX_UNFINISHED,
    check_storages,
    read_storage_jobs,
)
from accordion_service.schemas.jobs import JobPage, StorageView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = count()


def job(name: str, root: object, status: str = "RUNNING", reason: str = "") -> Any:
    """Return a job that keeps its checkpoints below this directory; older than those before."""
    number = next(NUMBERS)
    used = StorageView(place=f"{root}/id-{number}/checkpoints", workers=2, hosts=1, seen_at=NOW)
    created_at = NOW - timedelta(hours=number)
    storage = None if root is None else used
    return SimpleNamespace(
        id=f"id-{number}",
        name=name,
        status=status,
        reason=reason,
        message="nothing is there; mount its storage",
        storage=storage,
        created_at=created_at,
    )


def check(*jobs: Any, is_local: bool = True, is_own: bool = True) -> list[Finding]:
    return list(check_storages(jobs, is_local=is_local, is_own=is_own))


def test_each_storage_is_told_with_its_newest_job(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    jobs = [job("new", tmp_path), job("else", other, "FAILED"), job("old", tmp_path)]
    first, second = check(*jobs)
    assert (first.state, second.state) == ("ok", "ok")
    assert first.message.startswith(f"job new keeps its checkpoints in {tmp_path}/{jobs[0].id}/")
    assert first.message.endswith(f"; 1 other job has a folder in {tmp_path}")
    assert f"job else keeps its checkpoints in {other}/" in second.message


@pytest.mark.parametrize(("status", "state"), [("PAUSED", "bad"), ("SUCCEEDED", "note")])
def test_a_storage_that_is_not_found_is_named_with_its_jobs(
    tmp_path: Path, status: str, state: str
) -> None:
    gone = tmp_path / "gone"
    jobs = [job(name, gone, status) for name in ("a", "b", "c", "d")]
    found, missing = check(job("here", tmp_path), *jobs)
    assert found.state == "ok"
    assert (missing.name, missing.state) == ("storage", state)
    assert missing.message == (
        f"jobs a, b, c and 1 more keep their checkpoints in {gone}, which was not found on this"
        " machine; mount it, or copy what it had to the storage that the service has now"
        " (ACCORDION_STORAGE)"
    )


def test_a_storage_of_a_service_in_a_container_is_only_noted(tmp_path: Path) -> None:
    [found] = check(job("a", tmp_path / "gone"), is_own=False)
    assert found.state == "note"
    assert found.message.startswith(
        f"job a keeps its checkpoints in {tmp_path}/gone, which was not"
    )
    assert found.message.endswith(
        "; nothing is wrong if the service runs in a container or behind a tunnel"
    )


@pytest.mark.parametrize("root", ["s3://bucket/path", "/gone"])
def test_a_storage_that_this_machine_need_not_see_is_told_as_workers_saw_it(root: str) -> None:
    [found] = check(job("away", root), is_local=root.startswith("s3:"))
    assert found.state == "ok"
    assert f"{root}/" in found.message
    assert ", shared: verified by 2 workers on 1 host at " in found.message


def test_a_storage_that_does_not_respond_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Event()
    monkeypatch.setattr(storage_check, "LOOK_S", 0.01)
    monkeypatch.setattr(Path, "is_dir", lambda _: ended.wait())
    [found] = check(job("stale", f"file://{tmp_path}"))
    ended.set()
    assert found.state == "bad"
    assert f"in {tmp_path}, which did not respond within 0.01 s; " in found.message


def test_a_job_that_waits_for_its_storage_is_told_with_what_it_says(tmp_path: Path) -> None:
    away = [job(name, tmp_path, reason="WAITING_FOR_STORAGE") for name in "abcde"]
    *waiting, more, found = check(job("here", tmp_path), *away, is_local=False, is_own=False)
    assert [one.message for one in waiting] == [
        f"job {name} waits: nothing is there; mount its storage" for name in "abc"
    ]
    assert {(one.name, one.state) for one in [*waiting, more]} == {("storage", "bad")}
    assert more.message.startswith("2 more jobs wait for their storage; ")
    assert found.state == "ok"


def test_a_limited_number_of_storages_is_looked_at(tmp_path: Path) -> None:
    *told, more = check(*(job("a", f"s3://bucket-{n}") for n in range(MAX_STORAGES + 2)))
    assert len(told) == MAX_STORAGES
    assert (more.state, more.message) == ("note", "2 more, used by older jobs, were not checked")


def test_without_a_job_that_has_stored_anything_there_is_only_a_note() -> None:
    [found] = check(job("queued", None, "QUEUED"))
    assert (found.state, found.message.partition(";")[0]) == ("note", "not verified yet")


def test_unfinished_jobs_the_newest_ones_and_those_that_wait_are_read() -> None:
    ended, running, old = job("ended", None), job("running", None), job("old", None)
    waiting = job("waiting", None, reason="WAITING_FOR_STORAGE")
    asked: list[dict[str, Any]] = []

    def answer(**params: Any) -> JobPage:
        asked.append(params)
        items = [waiting] if "reason" in params else [ended, running]
        items = [running, old] if "status" in params else items
        return JobPage.model_construct(items=items, next_cursor=None)

    client: Any = SimpleNamespace(jobs=answer)
    assert read_storage_jobs(client) == [ended, running, old, waiting]
    assert sorted(one["limit"] for one in asked) == [MAX_NEWEST, MAX_NEWEST, MAX_UNFINISHED]
