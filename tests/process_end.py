"""How a test process ends: with its parent; a crash leaves its stacks, and Ray's destructors do
not run.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from multiprocessing import parent_process
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import pytest

ended_sessions: list[pytest.Session] = []
"""The session of this process once its tests have ended; its exit status is final when the process
ends.
"""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the child gets a signal when its parent dies."""
_files: list[TextIO] = []
"""Kept open: the handler writes to the descriptor."""
_uncaught: list[BaseException] = []
"""Exceptions that left pytest after the tests: in the summary of a plugin, or while it was
unconfigured.
"""


def end_with_parent() -> None:
    """Have this process end with its parent: a killed test session leaves nothing behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_session() -> None:
    """Have this process end with the one that asked a fork server for it: its parent is the
    server, which lives as long as its children.
    """
    threading.Thread(target=_exit_after, args=(parent_process(),), daemon=True).start()


def _exit_after(session: Any) -> None:
    session.join()
    os._exit(1)


def keep_crash_trace(folder: Path) -> None:
    """Have the interpreter write the stacks of all threads to a file of this process if it
    crashes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}.txt"
    _files.append((folder / name).open("a"))
    faulthandler.disable()
    faulthandler.enable(_files[-1])


def _end_without_destructors() -> None:
    """Leave before the destructors of Ray's library run.

    After a node was cut off, `ray.shutdown()` leaves a thread of the library behind (`worker.io`).
    It goes on while the destructors free what it uses: a session whose tests had all passed ended
    with a segmentation fault.
    """
    if ended_sessions and "ray._raylet" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        status = int(ended_sessions[-1].exitstatus)
        os._exit(status or (1 if _uncaught else 0))


def _watch_uncaught_exceptions() -> None:
    """Remember exceptions that end the process: Python gives them the status 1, which `os._exit`
    would lose.
    """
    show = sys.excepthook

    def remember(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _uncaught.append(error)
        show(kind, error, trace)

    sys.excepthook = remember


_watch_uncaught_exceptions()
# The first to be registered is the last to be called, after Ray's own.
atexit.register(_end_without_destructors)
