"""Worker processes on the hosts of a lab, and the links between them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

from tests.netlab.lab import NET, ROOT, SCRIPT, Lab

STEP_WORKER = "tests.bench.step_worker"


class WorkerHosts:
    """Workers that take the same commands at the same time, up while the `with` block runs.

    `program` is the module that each of the `number` workers runs, with its rank and the address of
    the group; those of neighboring ranks share a host.
    """

    def __init__(
        self,
        number: int = 2,
        *,
        per_host: int = 1,
        delay_ms: int = 0,
        program: str = STEP_WORKER,
    ) -> None:
        self._hosts = [rank // per_host + 1 for rank in range(number)]
        self._program = program
        self._lab = Lab(self._hosts[-1], delay_ms=delay_ms)
        self._workers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> WorkerHosts:
        self._lab.__enter__()
        address = f"tcp://{NET}.1:{random.randint(20_000, 50_000)}"
        self._workers = [
            _start([self._program, str(rank), address], host=host)
            for rank, host in enumerate(self._hosts)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._lab.__exit__()

    def shape(self, rate: int) -> None:
        """Give all links `rate` Mbit/s each way; 0 takes the limit away."""
        for host in set(self._hosts):
            subprocess.run([SCRIPT, "rate", str(host), str(rate)], check=True, capture_output=True)

    def ask(self, do: str, **arguments: Any) -> list[Any]:
        """Return the answers of all workers, in rank order.

        Raises:
            RuntimeError: a worker ended; what it said is on standard error.
        """
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            worker.stdin.flush()
        return [_answer(worker) for worker in self._workers]


def _start(module: list[str], *, host: int) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(SCRIPT), "exec", str(host), sys.executable, "-m", *module]
    return subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _answer(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("@"):
            return json.loads(line[1:])
    raise RuntimeError(
        f"a worker ended with status {worker.wait()} and without an answer; see its words above"
    )
