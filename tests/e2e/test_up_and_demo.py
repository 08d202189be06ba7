"""`accordion up` as people run it: real processes, real Ray."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import httpx2
import pytest

from accordion_client import Client
from accordion_service.schemas.jobs import EventView
from tests.e2e.real_up import TEN_SECONDS, WAIT_S, Up, accordion, processes_of, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


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
    job = up.client.submit(TEN_SECONDS)
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
    job = up.client.submit(TEN_SECONDS)
    wait_for(lambda: up.client.checkpoints(job.id).items)
    up.kill("ray")
    wait_for(lambda: up.client.job(job.id).status in ("SUCCEEDED", "FAILED"))
    ended, attempts = up.client.job(job.id), up.client.attempts(job.id).items
    assert (ended.status, len(attempts)) == ("SUCCEEDED", 2), ended.message
    assert [epoch.epoch for epoch in up.client.epochs(job.id).items] == list(range(12))
