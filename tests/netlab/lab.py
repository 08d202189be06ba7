"""Real hosts with shaped links on this machine, for tests: a Python handle on netlab.sh."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SCRIPT = Path(__file__).with_name("netlab.sh")
ROOT = Path(__file__).parents[2]
NET = "198.18.7"
_LOCK = Path("/tmp/accordion-netlab.lock")
_CLONE_NEWNET = 0x40000000
"""From linux/sched.h."""


class Lab:
    """N hosts behind links of `rate` Mbit/s (0: unshaped), `delay_ms` from one to the other; up
    while the `with` block runs.

    A machine has one lab: processes that want one wait for each other.
    """

    def __init__(self, hosts: int, rate: int = 0, delay_ms: int = 0) -> None:
        self._shape = [str(hosts), str(rate), str(delay_ms)]
        self._lock: IO[str] | None = None

    def __enter__(self) -> Lab:
        self._lock = _LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            subprocess.run([SCRIPT, "up", *self._shape], check=True, capture_output=True)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([SCRIPT, "down"], check=True, capture_output=True)
        if self._lock is not None:
            self._lock.close()

    def start(self, host: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """A Python process inside host 1..N."""
        env = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        command = [*inside(host), sys.executable, *arguments]
        return subprocess.Popen(
            command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def set_rate(self, host: int, rate: int) -> None:
        """Change the rate of the host's link to `rate` Mbit/s."""
        subprocess.run([SCRIPT, "rate", str(host), str(rate)], check=True, capture_output=True)

    def cut(self, host: int) -> None:
        """Take the host's link away: nothing arrives and nobody is told."""
        subprocess.run([SCRIPT, "cut", str(host)], check=True, capture_output=True)

    def heal(self, host: int) -> None:
        """Give the link back."""
        subprocess.run([SCRIPT, "heal", str(host)], check=True, capture_output=True)


def inside(host: int) -> list[str]:
    """What to put before a command so that it runs inside host 1..N."""
    return [str(SCRIPT), "exec", str(host)]


def address(host: int) -> str:
    """The IP address of host 1..N."""
    return f"{NET}.{host}"


@contextmanager
def visit(host: int) -> Iterator[None]:
    """This thread, and those that it starts meanwhile, see the network as host 1..N does."""
    with (
        Path("/proc/thread-self/ns/net").open() as home,
        Path(f"/run/netns/nl-h{host}").open() as there,
    ):
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns: cannot enter the network namespace")


def may_make_hosts() -> bool:
    """Whether this process may make network namespaces."""
    probe = subprocess.run(["ip", "netns", "add", "nl-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "nl-probe"], capture_output=True, check=False)
    return probe.returncode == 0
