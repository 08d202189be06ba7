"""The process that measures a plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MEASURE_FOR_HOURS = """
import os
from accordion_workers.planning.planner_process import run_planner

request = {
    "spec": {"task": {"name": "digits-mlp"}},
    "workers": 2,
    "latency_s": 0.0,
    "bytes_per_s": 1e9,
    "measure_s": 1e5,
}
run_planner(request, code=None, environment=os.environ)
"""


def test_the_planner_ends_when_the_process_that_asked_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", MEASURE_FOR_HOURS]) as asking:
        children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children")
        while not children.read_text().split():
            assert asking.poll() is None
            time.sleep(0.02)
        planner = int(children.read_text().split()[0])
        os.kill(asking.pid, signal.SIGKILL)
    try:
        while _is_running(planner):  # pytest's time limit ends this
            time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.kill(planner, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
