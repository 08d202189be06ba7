"""Leftovers of a task on a real service: child processes, and gigabytes of output."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client.commands.pack import pack_folder
from accordion_service.settings.home import Home
from tests.e2e.real_up import Up, pids_of, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
CHILD = "sleep 4711"
PRINTED_BYTES = 30_000_000
MOST_BYTES = 15_000_000
"""Limit of Ray's copies of one process's output: a 5 MB file, its predecessor, and buffered output.
"""
TASK = f"""
import subprocess
from accordion_workers.tasks.digits import DigitsMlp

class Task(DigitsMlp):
    def __init__(self, options):
        super().__init__({{"hidden": 8}})
        for _ in range({PRINTED_BYTES} // 1_000_000):
            print("x" * 1_000_000)
        subprocess.Popen({CHILD.split()})
"""


@pytest.fixture(scope="module")
def littering(up: Up) -> Iterator[str]:
    """Id of a job whose worker has printed much and started a process."""
    folder = up.home / "litter"
    folder.mkdir()
    (folder / "littering.py").write_text(TASK)
    spec = {
        "task": {"name": "littering:Task"},
        "training": {"epochs": 5000},
        "workers": {"min": 1, "max": 1},
        "code": up.client.upload(pack_folder(folder)).sha256,
    }
    job = up.client.submit(spec)
    wait_for(lambda: running(up, CHILD), lambda: up.client.job(job.id))
    yield job.id
    up.client.cancel(job.id)


def running(up: Up, command: str) -> set[int]:
    """Process ids of this service that run a command."""
    return {pid for pid in pids_of(up.home) if command_of(pid).startswith(command)}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_what_a_task_prints_fills_no_disk_beside_its_log(up: Up, littering: str) -> None:
    logs = Path(Home(up.home).running().ray_dir).rglob("worker-*")
    sizes = {
        path.name: path.stat().st_size for path in logs if path.is_file() and not path.is_symlink()
    }
    assert sum(sizes.values()) < MOST_BYTES, sizes
    wait_for(lambda: any("xxx" in line for line in up.client.logs(littering)))


def test_children_of_a_killed_worker_end_with_it(up: Up, littering: str) -> None:
    children = running(up, CHILD)
    assert children
    for pid in running(up, "ray::Worker"):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not children & set(pids_of(up.home)), lambda: up.client.job(littering))
