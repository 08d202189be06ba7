"""Real hosts with shaped links on this machine, for tests: a Python handle on netlab.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).with_name("netlab.sh")
ROOT = Path(__file__).parents[2]
NET = "198.18.7"


class Lab:
    """N hosts behind links of `rate` Mbit/s (0: unshaped), up while the `with` block runs."""

    def __init__(self, hosts: int, rate: int = 0) -> None:
        self._hosts, self._rate = hosts, rate

    def __enter__(self) -> Lab:
        subprocess.run([SCRIPT, "up", str(self._hosts), str(self._rate)], check=True, capture_output=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([SCRIPT, "down"], check=True, capture_output=True)

    def start(self, host: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """A Python process inside host 1..N."""
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [SCRIPT, "exec", str(host), sys.executable, *arguments]
        return subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def may_make_hosts() -> bool:
    """Whether this process may make network namespaces."""
    probe = subprocess.run(["ip", "netns", "add", "nl-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "nl-probe"], capture_output=True, check=False)
    return probe.returncode == 0
