"""Simulated runs side by side: their processes, and how far each has come."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from accordion_workers.common.plain_text import clean_for_terminal
from accordion_workers.simulation.simulated_runs import SimulatedRun, SimulatedStatus, end_run
from accordion_workers.simulation.simulation_process import SimulationProcess

LOG_FILE = "output.log"
"""File of a run with what its task printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """A run and its folder."""

    folder: Path
    run: SimulatedRun


class Simulations:
    """Runs of several seeds.

    Args:
        runs: runs that have not succeeded are started, or go on.
        code: zip file of the job's own modules; None without any.
        environment: environment variables of their processes.
        device: device of the simulated workers.
        processes: most runs at the same time.
    """

    def __init__(
        self,
        runs: Sequence[SeedRun],
        *,
        code: Path | None,
        environment: Mapping[str, str],
        device: str,
        processes: int,
    ) -> None:
        self._runs, self._code, self._environment = runs, code, environment
        self._device, self._num_processes = device, processes
        self._running: dict[int, SimulationProcess] = {}
        self._is_stopped = False
        self._shown: dict[int, str] = {}

    def run(self) -> list[SeedRun]:
        """Run all to their ends; Ctrl-C lets them save and end, a second one kills them."""
        with ThreadPoolExecutor(self._num_processes) as pool:
            futures = [pool.submit(self._run_seed, one) for one in self._runs]
            while True:
                try:
                    return [future.result() for future in futures]
                except KeyboardInterrupt:
                    self._interrupt()

    def _interrupt(self) -> None:
        processes = list(self._running.values())
        for process in processes:
            process.kill() if self._is_stopped else process.stop()
        self._is_stopped = True

    def _run_seed(self, one: SeedRun) -> SeedRun:
        if self._is_stopped or one.run.status is SimulatedStatus.SUCCEEDED:
            return one
        request = {
            "spec": one.run.spec,
            "workers": one.run.workers,
            "folder": str(one.folder),
            "device": self._device,
        }
        log = one.folder / LOG_FILE
        process = SimulationProcess(
            request, code=self._code, environment=self._environment, log=log
        )
        self._running[one.run.seed] = process
        last: dict[str, Any] = {}
        for last in process.events():
            self._show(one.run.seed, last)
        del self._running[one.run.seed]
        return replace(one, run=self._end(one, last, log))

    def _end(self, one: SeedRun, last: Mapping[str, Any], log: Path) -> SimulatedRun:
        if last["event"] == "error" and not self._is_stopped:
            text = last["error"] + (f"; see {log}" if last["needs_log"] else "")
            return end_run(one.folder, one.run, SimulatedStatus.FAILED, message=text)
        done = last.get("outcome") in {"completed", "ended early"}
        return end_run(
            one.folder, one.run, SimulatedStatus.SUCCEEDED if done else SimulatedStatus.STOPPED
        )

    def _show(self, seed: int, event: Mapping[str, Any]) -> None:
        """Show an event: progress on one line for all seeds, if there is a terminal."""
        if event["event"] == "log":
            typer.echo(clean_for_terminal(f"seed {seed}: {event['text']}"), err=True)
        if event["event"] != "progress" or not sys.stderr.isatty():
            return
        loss = "" if event["loss"] is None else f", loss {event['loss']:.4g}"
        self._shown[seed] = (
            f"seed {seed}: epoch {event['epoch']}, step {event['step']} of {event['steps']}{loss}"
        )
        line = " | ".join(self._shown[one] for one in sorted(self._shown))
        sys.stderr.write(f"\r{line[:200]}\x1b[K")
        sys.stderr.flush()
