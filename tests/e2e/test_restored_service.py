"""A service that is lost while a job trains on real Ray, and restored from its backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion_client import Client
from accordion_service.schemas.jobs import EventView
from tests.e2e.real_services import list_variables, serve
from tests.e2e.real_up import WAIT_S, accordion, wait_for
from tests.elastic.nodes import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
SPEC = {
    "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.05}},
    "training": {"epochs": 1000},
    "workers": {"min": 2, "max": 2},
}
"""A job that goes on until it is cancelled, at most an epoch a second."""


def run(home: Path, *arguments: str, **variables: str) -> None:
    program = accordion(home, *arguments, **variables)
    said = program.communicate(timeout=WAIT_S)
    assert program.returncode == 0, said


def list_epochs(client: Client, job_id: str) -> list[int]:
    return [row.epoch for row in client.all_epochs(job_id)]


def test_a_restored_service_takes_up_the_job_that_trained_meanwhile(tmp_path: Path) -> None:
    lost, new, file = tmp_path / "lost", tmp_path / "new", tmp_path / "backup.tar.gz"
    with Cluster(nodes=1) as cluster:
        variables = list_variables(cluster, tmp_path / "storage")
        with serve(lost, variables) as client:
            job_id = client.submit(SPEC).id
            wait_for(lambda: len(list_epochs(client, job_id)) >= 2, lambda: client.job(job_id))
            last = list_epochs(client, job_id)[-1]
            run(lost, "backup", str(file), **variables)
            wait_for(lambda: list_epochs(client, job_id)[-1] > last + 1)
        run(new, "restore", str(file), **variables)
        with serve(new, variables) as client:
            wait_for(lambda: list_epochs(client, job_id)[-1] > last + 3, lambda: client.job(job_id))
            job = client.job(job_id)
            assert (job.status, job.attempt) == ("RUNNING", 1), job.message
            client.cancel(job_id)
            wait_for(lambda: client.job(job_id).ended_at is not None, lambda: client.job(job_id))
            epochs = list_epochs(client, job_id)
            events = [event.seq for event in client.events(job_id) if isinstance(event, EventView)]
            assert client.job(job_id).status == "CANCELLED"
    # Those between the backup and the loss come from the journal of the job.
    assert epochs == list(range(len(epochs)))
    assert events == list(range(1, len(events) + 1))


def test_a_job_waits_until_its_storage_is_mounted(tmp_path: Path) -> None:
    storage, away = tmp_path / "storage", tmp_path / "away"
    with (
        Cluster(nodes=1) as cluster,
        serve(tmp_path / "home", list_variables(cluster, storage)) as client,
    ):
        job_id = client.submit(SPEC).id
        wait_for(lambda: len(list_epochs(client, job_id)) >= 2, lambda: client.job(job_id))
        client.pause(job_id)
        wait_for(lambda: client.job(job_id).status == "PAUSED", lambda: client.job(job_id))
        epochs = list_epochs(client, job_id)
        storage.rename(away)
        client.resume(job_id)
        wait_for(
            lambda: "nothing of it is in" in client.job(job_id).message, lambda: client.job(job_id)
        )
        assert list_epochs(client, job_id) == epochs
        assert client.job(job_id).reason == "WAITING_FOR_STORAGE"
        storage.rename(tmp_path / "empty")
        away.rename(storage)
        wait_for(lambda: len(list_epochs(client, job_id)) > len(epochs), lambda: client.job(job_id))
        assert list_epochs(client, job_id)[: len(epochs)] == epochs
        assert (client.job(job_id).status, client.job(job_id).attempt) == ("RUNNING", 2)
        client.cancel(job_id)
        wait_for(lambda: client.job(job_id).ended_at is not None, lambda: client.job(job_id))
