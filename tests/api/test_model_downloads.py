"""Downloads of models."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load

from accordion_service.api import model_downloads
from accordion_service.api.app_state import MAX_WAITING_EXPORTS
from accordion_service.api.model_files import export_model_file
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Conflict, Unavailable
from accordion_workers.checkpoint import model_export
from accordion_workers.checkpoint.async_save import SHARED_FILE
from accordion_workers.checkpoint.checkpoint_files import Manifest, write_manifest, write_part
from accordion_workers.checkpoint.storage import LocalStorage
from tests.api.team import ADMIN, JOBS, Team
from tests.api.world import World

LONG = {"training": {"epochs": 400}}


def save_reported(world: World, job_id: str) -> list[str]:
    """Write the checkpoints that the scripted job reported, the values being their number; return
    their names.
    """
    storage = LocalStorage(Path(world.settings.storage_of(job_id), "checkpoints"))
    rows = world.history.checkpoints(job_id)
    for number, row in enumerate(rows):
        model = {"model": {"weight": torch.full((2, 3), float(number))}}
        part = write_part(storage, f"{row.name}/{SHARED_FILE}", model)
        manifest = Manifest(
            job_id=job_id,
            name=row.name,
            epoch=row.epoch,
            step=row.step,
            world_size=1,
            files=(part,),
        )
        write_manifest(storage, manifest)
    return [row.name for row in rows]


@pytest.fixture
def job_id(world: World) -> str:
    job_id = world.submit(**LONG, name="a/b")
    world.turn_until(lambda: len(world.history.checkpoints(job_id)) >= 3)
    return job_id


def model_of(client: TestClient, job_id: str, **params: Any) -> Any:
    return client.get(f"{JOBS}/{job_id}/model", params=params)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export without a process of its own, which takes two seconds to load torch."""

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        model_export.main(Path(command[-1]), json.loads(given["input"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)


def test_a_running_job_gives_its_newest_model(
    client: TestClient, world: World, job_id: str
) -> None:
    names = save_reported(world, job_id)
    answer = model_of(client, job_id)
    assert answer.status_code == 200
    assert load(answer.content)["weight"].tolist() == [[len(names) - 1.0] * 3] * 2
    assert answer.headers["Accordion-Checkpoint"] == names[-1]
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert "Content-Encoding" not in answer.headers
    assert answer.headers["Content-Disposition"] == "attachment; filename=a-b.safetensors"
    assert world.job(job_id).status == Status.RUNNING


@pytest.mark.usefixtures("in_this_process")
def test_a_checkpoint_that_is_named_gives_its_model(
    client: TestClient, world: World, job_id: str
) -> None:
    first = model_of(client, job_id, checkpoint=save_reported(world, job_id)[0])
    assert load(first.content)["weight"].tolist() == [[0.0] * 3] * 2


@pytest.mark.usefixtures("in_this_process")
def test_a_job_without_checkpoints_says_why(client: TestClient, world: World, job_id: str) -> None:
    queued = world.submit(**LONG)
    for id_, status, detail in (
        (queued, 409, "has not saved a checkpoint yet; try again when it has"),
        (job_id, 404, "/checkpoints; mount the storage that has them there, or restore them"),
        ("nobody", 404, "there is no job with the ID nobody"),
    ):
        answer = model_of(client, id_)
        assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), (
            answer.text
        )
    unknown = model_of(client, job_id, checkpoint="../g1")
    assert unknown.status_code == 404
    assert "has no checkpoint '../g1'; its newest is 'epoch-0" in unknown.json()["detail"]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("mode", "number"), [("min", -1), ("max", 0)])
def test_the_best_model_is_that_of_the_objective(
    client: TestClient, world: World, mode: str, number: int
) -> None:
    job_id = world.submit(**LONG, objective={"metric": "loss", "mode": mode})
    world.turn_until(lambda: len(world.history.checkpoints(job_id)) >= 3)
    names = save_reported(world, job_id)
    listed = client.get(f"{JOBS}/{job_id}/checkpoints").json()["items"]
    assert [one["objective"] for one in listed] == [-float(one["epoch"]) for one in listed]
    assert [one["name"] for one in listed if one["best"]] == [names[number]]
    assert [one["name"] for one in listed if one["newest"]] == names[-1:]
    kept = client.get(f"{JOBS}/{job_id}/checkpoints", params={"kept": True}).json()["items"]
    assert [one["name"] for one in kept] == sorted({*names[-2:], names[number]})
    best = model_of(client, job_id, checkpoint="best")
    assert best.headers["Accordion-Checkpoint"] == names[number]


def test_without_an_objective_no_model_is_the_best(
    client: TestClient, world: World, job_id: str
) -> None:
    save_reported(world, job_id)
    refused = model_of(client, job_id, checkpoint="best")
    assert refused.status_code == 409
    assert "has no objective, by which a checkpoint could be the best" in refused.json()["detail"]


@pytest.mark.usefixtures("in_this_process")
def test_a_storage_that_the_service_does_not_see_is_reported(
    client: TestClient, world: World, job_id: str
) -> None:
    names, root = save_reported(world, job_id), Path(world.settings.storage_of(job_id)).parent
    moved = root.rename(root.with_name("not mounted"))
    away = model_of(client, job_id)
    assert away.status_code == 503
    assert f"does not see the storage of jobs, {root}; mount it there" in away.json()["detail"]
    moved.rename(root)
    assert model_of(client, job_id).headers["Accordion-Checkpoint"] == names[-1]


def test_more_exports_than_wait_are_refused(
    client: TestClient, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def export(*_: Any) -> None:
        begun.set()
        end.wait()
        raise Conflict("the test has ended")

    monkeypatch.setattr(model_downloads, "export_model_file", export)
    with ThreadPoolExecutor(MAX_WAITING_EXPORTS + 2) as pool:
        waiting = [pool.submit(model_of, client, job_id)]
        begun.wait()
        waiting += [pool.submit(model_of, client, job_id) for _ in range(MAX_WAITING_EXPORTS + 1)]
        try:
            refused = next(as_completed(waiting)).result()
        finally:
            end.set()
        statuses = sorted(answer.result().status_code for answer in waiting)
    assert statuses == [409] * (MAX_WAITING_EXPORTS + 1) + [503]
    assert "one model is being exported and 4 wait; try again in a minute" in refused.text


def test_the_export_gets_no_setting_of_the_service(
    client: TestClient, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, str] = {}

    def export(_: Any, environment: dict[str, str]) -> None:
        got.update(environment)
        raise Conflict("the test has ended")

    monkeypatch.setattr(model_downloads, "export_model_file", export)
    monkeypatch.setenv("ACCORDION_SECRETS_KEY", "a key of the operators, in a variable")
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert model_of(client, job_id).status_code == 409
    assert got["AWS_PROFILE"] == "training"
    assert not [name for name in got if name.startswith("ACCORDION_")]


def test_the_model_of_a_hidden_job_is_not_found(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    job_id = team.submit(ada)
    assert team.call(bob, "GET", f"{JOBS}/{job_id}/model").status_code == 404
    assert team.call(ADMIN, "GET", f"{JOBS}/{job_id}/model").status_code == 409


def test_what_a_killed_export_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accordion-model-killed").mkdir()
    (tmp_path / "accordion-model-killed" / "lock").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=subprocess.TimeoutExpired("", 1.0)))
    with pytest.raises(Unavailable):
        export_model_file({}, {})
    assert list(tmp_path.iterdir()) == []
