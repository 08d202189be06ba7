"""Simulated runs side by side: their processes, and how far each has come."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import typer

from accordion_workers.common.plain_text import clean_for_terminal
from accordion_workers.simulation.simulated_runs import SimulatedRun, SimulatedStatus, end_run
from accordion_workers.simulation.simulation_process import SimulationProcess

WAIT_S = 0.2
"""Seconds between two looks whether somebody has pressed Ctrl-C."""
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
            while self._is_any_running(futures):
                pass
            _show_line("")
            return [future.result() for future in futures]

    def _is_any_running(self, futures: Sequence[Future[SeedRun]]) -> bool:
        """Wait for a moment; return whether a run has not ended. Between two waits this thread
        hears a Ctrl-C that the system gave to another one.
        """
        try:
            return bool(wait(futures, timeout=WAIT_S).not_done)
        except KeyboardInterrupt:
            self._interrupt()
            return True

    def _interrupt(self) -> None:
        is_second, self._is_stopped = self._is_stopped, True
        for process in list(self._running.values()):
            process.kill() if is_second else process.stop()

    def _run_seed(self, one: SeedRun) -> SeedRun:
        if self._is_stopped or one.run.status is SimulatedStatus.SUCCEEDED:
            return one
        try:
            return replace(one, run=self._end(one, self._run_process(one)))
        except OSError as error:  # such as a full disk
            failed = replace(one.run, status=SimulatedStatus.FAILED, message=str(error))
            return replace(one, run=failed)

    def _run_process(self, one: SeedRun) -> Mapping[str, Any]:
        """Run the process of a seed; return its last event."""
        request = {
            "spec": one.run.spec,
            "workers": one.run.workers,
            "folder": str(one.folder),
            "device": self._device,
        }
        process = SimulationProcess(
            request, code=self._code, environment=self._environment, log=one.folder / LOG_FILE
        )
        self._running[one.run.seed] = process
        if self._is_stopped:  # since it was looked at above
            process.stop()
        last: dict[str, Any] = {}
        for last in process.events():
            self._show(one.run.seed, last)
        del self._running[one.run.seed]
        return last

    def _end(self, one: SeedRun, last: Mapping[str, Any]) -> SimulatedRun:
        if last["event"] == "error" and not self._is_stopped:
            text = last["error"] + (f"; see {one.folder / LOG_FILE}" if last["needs_log"] else "")
            return end_run(one.folder, one.run, SimulatedStatus.FAILED, message=text)
        done = last.get("outcome") in {"completed", "ended early"}
        return end_run(
            one.folder, one.run, SimulatedStatus.SUCCEEDED if done else SimulatedStatus.STOPPED
        )

    def _show(self, seed: int, event: Mapping[str, Any]) -> None:
        """Show an event: progress on one line for all seeds, if there is a terminal."""
        if event["event"] == "log":
            _show_line("")
            typer.echo(clean_for_terminal(f"seed {seed}: {event['text']}"), err=True)
        if event["event"] != "progress":
            return
        loss = "" if event["loss"] is None else f", loss {event['loss']:.4g}"
        self._shown[seed] = (
            f"seed {seed}: epoch {event['epoch']}, step {event['step']} of {event['steps']}{loss}"
        )
        _show_line(" | ".join(self._shown[one] for one in sorted(self._shown)))


def _show_line(line: str) -> None:
    """Replace the line of the terminal, if there is one, by what fits on it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line[: get_terminal_size().columns - 1]}\x1b[K")
        sys.stderr.flush()
