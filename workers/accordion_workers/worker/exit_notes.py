"""Exit notes: a worker process records its own crash or `os._exit`, which Ray does not report.

A note is a file in the job's storage. faulthandler writes the stack of a crash into it, and a
wrapped `os._exit` its caller. A process that is killed from outside leaves it empty.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CRASH = re.compile(r"Fatal Python error: (?P<what>[^\n]+)")
_open_notes: list[IO[str]] = []
"""Files that stay open for the life of the process."""


def exit_note_path(storage: str, node: str, pid: int) -> Path:
    """Return the path of a process's exit note."""
    return Path(storage, "exits", f"{node[:12]}-{pid}.txt")


def enable_exit_note(file: Path, before_exit: Callable[[], object] = lambda: None) -> None:
    """Record a crash or an `os._exit` of this process in this file from now on; `os._exit` calls
    `before_exit` first.

    If the storage cannot be written, only the note is lost, and `before_exit` is not called.
    """
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        note = file.open("w", encoding="utf-8")
        _open_notes.append(note)
        faulthandler.enable(note, all_threads=False)
        # Forked children crash or call os._exit without ending this process.
        os.register_at_fork(after_in_child=faulthandler.disable)
        _note_exits(note, before_exit)


def read_exit_note(file: Path) -> str | None:
    """Return how the process ended, in one sentence, and remove the file; None if it is empty."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    discard_exit_note(file)
    if crash := _CRASH.search(text):
        return f"the process crashed with {crash['what'].lower()}{_place_of(text)}"
    return text.strip().splitlines()[0] if text.strip() else None


def discard_exit_note(file: Path) -> None:
    """Remove the file, if it is there."""
    with suppress(OSError):
        file.unlink()


def _note_exits(note: IO[str], before_exit: Callable[[], object]) -> None:
    leave, mine = os._exit, os.getpid()

    def noted(status: int) -> NoReturn:
        try:
            if os.getpid() == mine:
                caller = sys._getframe(1)
                line = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
                with suppress(OSError, ValueError):
                    note.write(f"the process ended itself with os._exit({status}) at {line}\n")
                    note.flush()
                before_exit()
        finally:
            leave(status)

    os._exit = noted


def _place_of(text: str) -> str:
    """Return ` at file:line` of the innermost frame outside of installed packages."""
    frames = [(found["file"], found["line"]) for found in _FRAME.finditer(text)]
    own = [
        (file, line)
        for file, line in frames
        if "site-packages" not in file and f"lib{os.sep}python" not in file
    ]
    return f" at {Path(own[0][0]).name}:{own[0][1]}" if own else ""


__all__ = ["discard_exit_note", "enable_exit_note", "exit_note_path", "read_exit_note"]
