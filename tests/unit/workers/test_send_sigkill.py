"""The signal that ends a worker process which does not react."""

from __future__ import annotations

import signal
import subprocess

from accordion_workers.controller.actor_pool import send_sigkill


def test_a_process_is_killed_and_one_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["sleep", "600"])
    send_sigkill(process.pid)
    assert process.wait() == -signal.SIGKILL
    send_sigkill(process.pid)
