"""Guest runs on the command line, against a live service over the scripted cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from accordion_service.settings.home import Home, Running
from accordion_workers.records.contract import EndRecord
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion


@pytest.fixture
def guest(service: Live) -> Iterator[str]:
    """Id of a guest run that has finished an epoch, and ends with the test."""
    job_id = service.runtime.enlist("mine", spec={"training": {"epochs": 4000}})
    wait_for_epochs(service, job_id, 1)
    yield job_id
    service.runtime.stuck.add(job_id)
    service.runtime.report(job_id, EndRecord(status="SUCCEEDED", reason="COMPLETED"))


def wait_for_epochs(service: Live, job_id: str, count: int) -> None:
    """Wait until the service knows the run and so many of its epochs."""
    deadline = time.monotonic() + 60
    with service.client() as client:
        while client.get(f"/api/v1/jobs/{job_id}/epochs").json().get("total", -1) < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_guest_is_listed_and_shown_without_figures_that_are_not_known(
    accordion: Accordion, guest: str
) -> None:
    listed, shown = accordion("list").out, accordion("show", guest).out
    row = next(line for line in listed.splitlines() if line.startswith(guest[:13]))
    assert row.split()[2:4] == ["guest", "RUNNING"]
    assert " of " not in row.split("train")[0]
    assert "ray        Ray Train, run mine-run, Ray job 01000000" in shown
    assert "2 train now; a guest run, started and stopped by its own script" in shown
    assert "epochs done, step" in shown or "epoch done, step" in shown
    assert "4000" not in shown


def test_guest_is_overridden_but_not_cancelled(accordion: Accordion, guest: str) -> None:
    assert "APPLIED" in accordion("override", guest, "--level", "low", "--wait").out
    said = accordion("cancel", guest)
    assert said.code == 2
    assert "is a guest run and cannot be cancelled here" in said.err


def test_guest_is_watched_until_its_script_ends(accordion: Accordion, service: Live) -> None:
    job_id = service.runtime.enlist("short", spec={"training": {"epochs": 3}})
    wait_for_epochs(service, job_id, 0)
    said = accordion("watch", job_id)
    assert said.code == 0
    assert [f"epoch   {n}  loss" in said.out for n in (0, 1, 2)] == [True] * 3
    assert "SUCCEEDED: its script ended" in said.out


OUTPUT_OF_NONE = ("--attempt", "7")
"""A guest run of the scripted cluster has output, and a real one has none."""


def test_logs_of_a_guest_run_say_where_its_workers_print(accordion: Accordion, guest: str) -> None:
    said = accordion("logs", guest, *OUTPUT_OF_NONE)
    assert "terminal of its script" in said.err
    assert "worker-*-01000000-*.out and .err in session_latest/logs of Ray's directory" in said.err


def test_logs_of_a_guest_run_beside_accordion_up_name_the_folder(
    accordion: Accordion, guest: str, service: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(
        pid=1, url=service.url, ray_address="", ray_dir="/tmp/accordion-up-1", pids={}
    )
    monkeypatch.setattr(Home, "running", lambda _: running)
    said = accordion("logs", guest, *OUTPUT_OF_NONE)
    assert "-*.out and .err in /tmp/accordion-up-1/ray/session_latest/logs" in said.err
