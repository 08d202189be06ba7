"""Starts, monitors, restarts and stops the programs of one process; none of them outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from accordion_service.settings.home import OWNER_ONLY_DIR

FIRST_DELAY_S = 0.1
"""Seconds from a program's first exit to its restart; doubled with every further exit."""
MAX_DELAY_S = 10.0
_STEADY_S = 30.0
"""Seconds after which a program counts as recovered, and its exits are counted from zero."""
END_GRACE_S = 10.0
"""Seconds from the stop signal until a program is killed."""
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to start."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    """File to which its output is appended."""
    orphan_signal: signal.Signals | None = signal.SIGKILL
    """Signal that it receives when this process dies; None lets it continue."""
    needs: tuple[str, ...] = ()
    """Programs that it depends on: it is restarted with them."""


@dataclass(slots=True)
class _ChildProcess:
    program: Program
    process: subprocess.Popen[bytes]
    started_at: float
    deaths: int = 0
    next_start_at: float | None = None
    """Time of the next start while it does not run; else None."""
    failure: str = ""
    """Why the last start failed; empty if it did not."""


@dataclass(slots=True, kw_only=True)
class ProcessManager:
    """Keeps programs running. Only the thread that created it may call it: children die with the
    thread that started them.

    Children that this process had before are not touched.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _children: dict[str, _ChildProcess] = field(default_factory=dict)
    _strangers: frozenset[int] = field(default_factory=lambda: _living_children())
    """Process ids of children started by other code."""

    def start(self, programs: Iterable[Program]) -> None:
        """Start all programs.

        Raises:
            OSError: a program cannot be started.
        """
        _adopt_orphans(adopt=True)
        for program in programs:
            self._children[program.name] = _ChildProcess(
                program, start_process(program), self.clock()
            )

    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: child.process.pid for name, child in self._children.items()}

    def deaths(self) -> dict[str, int]:
        """Return how often each program exited since it last ran steadily."""
        return {name: child.deaths for name, child in self._children.items()}

    def failures(self) -> dict[str, str]:
        """Return why programs cannot be started, by name; each start is tried again."""
        return {name: child.failure for name, child in self._children.items() if child.failure}

    def look(self) -> list[str]:
        """Record exits, restart programs that are due, and return the names of those that run
        again.
        """
        now = self.clock()
        for child in self._children.values():
            if child.next_start_at is None and child.process.poll() is not None:
                self._record_exit(child, now)
        self._reap_adopted()
        return [name for name, child in self._children.items() if self._restart_if_due(child, now)]

    def end(self, name: str, *, grace_s: float, is_hurried: Callable[[], bool]) -> None:
        """Ask a program to stop, and wait for it; it is not restarted, nor killed.

        Once `is_hurried` says so, it is asked again and again.
        """
        process, deadline = self._children[name].process, self.clock() + grace_s
        process.terminate()
        while process.poll() is None and self.clock() < deadline:
            self.sleep(_POLL_S)
            if is_hurried():
                process.terminate()

    def stop(self, order: Sequence[str]) -> None:
        """Stop the named programs one after the other, then the processes they left behind."""
        for name in order:
            if name in self._children:
                end_process(self._children[name].process, grace_s=END_GRACE_S)
        self._children.clear()
        self._end_adopted()
        _adopt_orphans(adopt=False)

    def _record_exit(self, child: _ChildProcess, now: float) -> None:
        child.deaths = 1 if now - child.started_at >= _STEADY_S else child.deaths + 1
        child.next_start_at = now + restart_delay_s(child.deaths)
        for other in self._children.values():
            if child.program.name in other.program.needs and other.process.poll() is None:
                other.process.terminate()

    def _restart_if_due(self, child: _ChildProcess, now: float) -> bool:
        if child.next_start_at is None or now < child.next_start_at:
            return False
        try:
            child.process = start_process(child.program)
        except (OSError, subprocess.SubprocessError) as error:
            child.deaths += 1
            child.next_start_at = now + restart_delay_s(child.deaths)
            child.failure = _describe_failure(error)
            return False
        child.started_at, child.next_start_at, child.failure = now, None, ""
        return True

    def _end_adopted(self) -> None:
        """Stop adopted workers, whose parents were killed, after a moment to exit by themselves."""
        deadline = self.clock() + END_GRACE_S / 2
        while (left := self._list_adopted()) and self.clock() < deadline:
            self.sleep(_POLL_S)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self._list_adopted() and self.clock() < deadline + END_GRACE_S:
            self.sleep(_POLL_S)

    def _list_adopted(self) -> list[int]:
        self._reap_adopted()
        return self._list_not_started()

    def _reap_adopted(self) -> None:
        """Reap adopted children that ended; the `Popen` that started them reaps all others."""
        if _LIBC is None:  # nothing is adopted
            return
        with suppress(ChildProcessError):
            # A single call if no child ended: this runs ten times a second.
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                for pid in self._list_not_started():
                    os.waitpid(pid, os.WNOHANG)

    def _list_not_started(self) -> list[int]:
        return sorted(_living_children() - self._strangers - set(self.pids().values()))


def restart_delay_s(deaths: int) -> float:
    """Seconds from the n-th exit in a row to the next start."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(deaths - 1, 20))


def start_process(program: Program) -> subprocess.Popen[bytes]:
    """Start a program in its own session, so that Ctrl-C reaches only this process; it dies with
    this process.

    Raises:
        OSError: it cannot be started.
    """
    program.log.parent.mkdir(mode=OWNER_ONLY_DIR, exist_ok=True)
    with program.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - commands of this package
            program.command,
            env=dict(program.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Safe here: this process has one thread, and the call is a single system call.
            preexec_fn=lambda: _die_with_parent(program.orphan_signal),
        )


def end_process(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """Terminate a process, and kill it if it does not exit."""
    process.terminate()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def inherit_environment(keep: Callable[[str], bool]) -> dict[str, str]:
    """Select variables of this environment for a child; they are passed on unchanged, never read as
    settings.
    """
    return {name: value for name, value in os.environ.items() if keep(name)}


def _describe_failure(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)


def _adopt_orphans(*, adopt: bool) -> None:
    """Adopt grandchildren whose parent dies, so that they can be found and stopped; or stop doing
    so.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def _die_with_parent(number: signal.Signals | None) -> None:
    if _LIBC is not None and number is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _living_children() -> frozenset[int]:
    """Process ids of all children of this process, including adopted ones."""
    return frozenset(child.pid for child in psutil.Process().children())
