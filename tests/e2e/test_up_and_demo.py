"""`accordion up` and `accordion demo` as people run them: real processes, real Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from service.api.schemas import EventView
from service.client import Client
from service.home import Home
from tests.e2e.real_up import WAIT_S, Up, accordion, processes_of, start, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
SPEC = {
    "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.03}},
    "training": {"epochs": 12},
    "workers": {"min": 2, "max": 2},
}
"""About ten seconds of training: long enough to break things in the middle."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory whose processes are gone at the end, whatever the test did."""
    home = tmp_path / "home"
    yield home
    running = Home(home).running()
    if running:
        os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(home))
    left = Home(home).last()
    if left:
        shutil.rmtree(left.ray_dir, ignore_errors=True)


def test_a_second_up_on_the_same_home_is_one_sentence_with_the_way_out(up: Up) -> None:
    second = accordion(up.home, "up", "--port", "0")
    out, err = second.communicate(timeout=WAIT_S)
    assert (second.returncode, out) == (2, "")
    assert f"is already running in {up.home} as process {up.process.pid}, at {up.client.url}" in err
    assert err.count("\n") == 1


def test_a_taken_port_is_one_sentence_and_starts_nothing(up: Up, home: Path) -> None:
    port = up.client.url.rpartition(":")[2]
    second = accordion(home, "up", "--port", port)
    _, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 2
    assert f"port {port} on 127.0.0.1 cannot be used" in err
    assert "--port" in err
    assert processes_of(home) == []


def test_everything_listens_on_this_machine_only(up: Up) -> None:
    links = [link for name in ("api", "ray") for link in Path(f"/proc/{up.pid(name)}/fd").iterdir()]
    sockets = {opened(link).removeprefix("socket:[").removesuffix("]") for link in links}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}
    assert addresses == {socket.inet_aton("127.0.0.1")[::-1].hex().upper()}


def test_the_owner_needs_no_token_on_the_command_line_and_a_stranger_gets_nothing(up: Up) -> None:
    assert httpx2.get(f"{up.client.url}/api/v1/jobs").status_code == 401
    told, _ = accordion(up.home, "login").communicate(timeout=WAIT_S)
    assert told.startswith(f"{up.client.url}/login?link=")
    assert up.token not in told


def opened(link: Path) -> str:
    """What a descriptor stands for; nothing where it was closed since it was listed."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def test_killed_api_and_scheduler_come_back_and_the_job_goes_on(up: Up) -> None:
    job = up.client.submit(SPEC)
    events: list[EventView] = []

    def watch() -> None:
        with Client(up.client.url, up.token) as client:
            events.extend(event for event in client.events(job.id) if isinstance(event, EventView))

    watcher = threading.Thread(target=watch)
    watcher.start()
    wait_for(lambda: any(event.type == "epoch" for event in events))
    up.kill("scheduler")
    up.kill("api")
    watcher.join(WAIT_S)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert up.client.job(job.id).status == "SUCCEEDED"
    assert [(epoch.epoch, epoch.attempt) for epoch in up.client.epochs(job.id).items] == [
        (n, 1) for n in range(12)
    ]


def test_a_killed_ray_head_comes_back_and_the_job_goes_on_from_its_checkpoint(up: Up) -> None:
    job = up.client.submit(SPEC)
    wait_for(lambda: up.client.checkpoints(job.id).items)
    up.kill("ray")
    wait_for(lambda: up.client.job(job.id).status in ("SUCCEEDED", "FAILED"))
    ended, attempts = up.client.job(job.id), up.client.attempts(job.id).items
    assert (ended.status, len(attempts)) == ("SUCCEEDED", 2), ended.message
    assert [epoch.epoch for epoch in up.client.epochs(job.id).items] == list(range(12))


def test_stopping_leaves_nothing_running_and_the_job_goes_on_at_the_next_up(home: Path) -> None:
    first = start(home)
    job = first.client.submit(SPEC)
    wait_for(lambda: first.client.checkpoints(job.id).items)
    first.process.terminate()
    first.process.communicate(timeout=WAIT_S)
    assert first.process.returncode == 0
    assert processes_of(home) == []
    assert not (home / "up.json").exists()
    second = start(home)
    wait_for(lambda: second.client.job(job.id).status in ("SUCCEEDED", "FAILED"))
    assert second.client.job(job.id).status == "SUCCEEDED"
    assert second.client.attempts(job.id).items[-1].number == 2


def test_a_killed_up_takes_everything_with_it(home: Path) -> None:
    up = start(home)
    job = up.client.submit(SPEC)
    wait_for(lambda: up.client.job(job.id).status == "RUNNING")
    up.process.kill()
    up.process.communicate(timeout=WAIT_S)
    wait_for(lambda: not processes_of(home))


def test_the_demo_succeeds_writes_its_figures_and_leaves_nothing_running(
    home: Path, tmp_path: Path
) -> None:
    demo = accordion(home, "demo", "--json", str(tmp_path / "figures.json"))
    out, err = demo.communicate(timeout=2 * WAIT_S)
    assert (demo.returncode, err) == (0, "")
    assert all(
        word in out
        for word in (
            "epoch  19 of 0-19",
            "critical low",
            "stable high",
            "saved",
            "accuracy",
            "dense",
            "fp16",
        )
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["accuracy"] >= 0.95
    assert figures["engine"] == "ray-train"
    assert 0 < figures["seconds"]["ready"] < figures["seconds"]["total"]
    assert 0 < figures["bytes"]["payload"] < figures["bytes"]["fp16"] < figures["bytes"]["dense"]
    assert processes_of(home) == []
