"""Starts a simulation in a process of its own, which loads torch; stdlib only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class SimulationProcess:
    """Process of one simulation.

    Args:
        request: see `workers/accordion_workers/simulation/simulate_here.py`, without `parent`.
        code: zip file of the job's own modules; None without any.
        environment: environment variables of the process.
        log: file for what the task prints.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        *,
        code: Path | None,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._log = log
        with log.open("ab") as stderr:
            # -P: modules in the current folder must not replace installed ones.
            self._process = subprocess.Popen(  # noqa: S603 - a module of this project
                [
                    *(sys.executable, "-P", "-m", "accordion_workers.simulation.simulate_here"),
                    *([] if code is None else [str(code)]),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environment),
                text=True,
                start_new_session=True,  # Ctrl-C reaches it by `stop` alone
            )
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps({**request, "parent": os.getpid()}) + "\n")
            self._process.stdin.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events until the process ends; the last one has the event `end` or `error`."""
        last: dict[str, Any] = {}
        for line in self._process.stdout or ():
            last = json.loads(line)
            yield last
        code = self._process.wait()
        if last.get("event") not in {"end", "error"}:
            yield {
                "event": "error",
                "error": f"the process of the simulation ended with exit code {code}",
                "needs_log": True,
            }

    def stop(self) -> None:
        """Let the process save and end."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
