"""Uploads that no job names go after a while, and never beneath somebody who is about to
name them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from accordion_service.errors import NotFound, SettingsError
from accordion_service.job_inputs.code import CodeStore
from accordion_service.settings.settings import load_settings
from tests.api.test_code import CODE, GOOD, JOBS, OWN, SHA, kept, upload
from tests.api.world import World
from tests.unit.workers.archives import named

DAY_S = 86_400.0
HOUR_S = 3_600.0


def later(world: World, seconds: float) -> None:
    """Advance the clock and let the scheduler look again."""
    world.clock.now += seconds
    world.turn()


def test_an_upload_that_no_job_names_goes_after_a_day(client: TestClient, world: World) -> None:
    upload(client, GOOD)
    later(world, DAY_S - HOUR_S)
    assert kept(world.settings.home) == [f"{SHA}.zip"]
    later(world, HOUR_S + 1)
    assert kept(world.settings.home) == []


def test_uploading_it_again_begins_a_new_day(client: TestClient, world: World) -> None:
    upload(client, GOOD)
    later(world, DAY_S - HOUR_S)
    upload(client, GOOD)
    later(world, DAY_S - HOUR_S)
    assert kept(world.settings.home) == [f"{SHA}.zip"]


@pytest.mark.parametrize("end", [World.cancel, World.finish], ids=["cancelled", "succeeded"])
def test_code_that_a_job_names_stays_whatever_became_of_the_job(
    client: TestClient, world: World, end: Callable[[World, str], Any]
) -> None:
    upload(client, GOOD)
    end(world, client.post(JOBS, json={**OWN, "code": SHA}).json()["id"])
    later(world, 400 * DAY_S)
    assert kept(world.settings.home) == [f"{SHA}.zip"]
    assert client.post(JOBS, json={**OWN, "code": SHA}).status_code == 201


def test_a_spec_that_names_pruned_code_is_refused_with_the_way_out(
    client: TestClient, world: World
) -> None:
    upload(client, GOOD)
    later(world, DAY_S + 1)
    answer = client.post(JOBS, json={**OWN, "code": SHA})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/code")
    assert (
        "upload it with POST /api/v1/code, or submit with --code DIRECTORY"
        in answer.json()["detail"]
    )
    assert world.jobs.unfinished() == []
    assert upload(client, GOOD).status_code == 201
    assert client.post(JOBS, json={**OWN, "code": SHA}).status_code == 201


@pytest.mark.parametrize("ask", ["look", "dry run"])
def test_requested_code_is_kept_for_another_day(client: TestClient, world: World, ask: str) -> None:
    upload(client, GOOD)
    later(world, DAY_S - 1)
    if ask == "look":
        client.get(f"{CODE}/{SHA}")
    else:
        client.post(JOBS, json={**OWN, "code": SHA}, params={"dry_run": "true"})
    later(world, DAY_S - 1)
    assert kept(world.settings.home) == [f"{SHA}.zip"]


def test_what_a_killed_api_left_of_an_upload_goes_too_and_files_of_others_stay(
    world: World,
) -> None:
    folder = world.settings.code
    folder.mkdir(parents=True)
    for name in (".0123456789abcdef.part", "notes.txt"):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (world.clock.now, world.clock.now))
    later(world, DAY_S + 1)
    assert kept(world.settings.home) == ["notes.txt"]


def test_how_long_unnamed_code_is_kept_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_CODE_RETENTION_S", "60")
    assert load_settings(home=tmp_path).code_retention_s == 60.0


def test_an_upload_is_kept_long_enough_to_come_in(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"CODE_RETENTION_S.*greater than or equal to 60"):
        load_settings(home=tmp_path, code_retention_s=1)


def test_a_scheduler_without_the_lease_prunes_nothing(client: TestClient, world: World) -> None:
    world.turn()
    upload(client, GOOD)
    world.clock.now += DAY_S + 1
    world.scheduler.run_once()
    upload(client, GOOD)
    os.utime(world.settings.code / f"{SHA}.zip", (0, 0))
    assert not world.new_scheduler().run_once()
    assert kept(world.settings.home) == [f"{SHA}.zip"]


def test_a_folder_that_may_not_be_read_is_warned_of_and_keeps_no_job_waiting(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(client, GOOD)

    def refusing(look: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any = ".") -> Any:
            # other folders are read meanwhile, by finalizers of temporary ones for example.
            if str(path) == str(world.settings.code):
                raise PermissionError(13, "Permission denied")
            return look(path)

        return refuse

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    world.clock.now += HOUR_S
    with capture_logs() as said:
        world.finish(world.submit())
    assert [line["error"] for line in said if line["event"] == "uploads cannot be removed"] == [
        "[Errno 13] Permission denied"
    ]


def test_request_during_the_removal_of_an_upload_waits_and_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told, unlink = CodeStore(tmp_path, lambda: DAY_S), [], Path.unlink
    (tmp_path / f"{SHA}.zip").write_bytes(GOOD)
    os.utime(tmp_path / f"{SHA}.zip", (0, 0))

    def look() -> None:
        try:
            store.get(SHA)
        except NotFound as error:
            told.append(str(error))

    looker = threading.Thread(target=look)

    def unlink_while_somebody_looks(path: Path, **more: Any) -> None:
        looker.start()
        looker.join(timeout=0.3)
        unlink(path, **more)

    monkeypatch.setattr(Path, "unlink", unlink_while_somebody_looks)
    assert store.prune((), older_than_s=HOUR_S) == 1
    looker.join()
    assert told == [
        f"there is no code {SHA}; upload it with POST /api/v1/code, or submit with --code DIRECTORY"
    ]


def test_of_what_is_submitted_while_it_is_pruned_nothing_is_half_done(
    client: TestClient, world: World
) -> None:
    store, old = CodeStore(world.settings.code, world.clock), world.clock.now - DAY_S

    def submit(sha: str) -> int:
        return client.post(JOBS, json={**OWN, "code": sha}).status_code

    def prune(_: str) -> int:
        return store.prune(world.jobs.named_code(), older_than_s=HOUR_S)

    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            sha = upload(client, named(f"mine{number}.py")).json()["sha256"]
            os.utime(world.settings.code / f"{sha}.zip", (old, old))
            pruning, submitting = pool.submit(prune, sha), pool.submit(submit, sha)
            assert (submitting.result(), pruning.result()) in {(201, 0), (422, 1)}
            assert (world.settings.code / f"{sha}.zip").exists() == (submitting.result() == 201)
