"""Why a worker process ended, as it writes down itself: Ray's notice of death holds neither signals nor `os._exit`.

Each process keeps one file in the job's storage: Python writes there where it crashed, and `os._exit` who called it. A
process that is killed from outside leaves it empty.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CRASH = re.compile(r"Fatal Python error: (?P<what>[^\n]+)")
_open_notes: list[IO[str]] = []
"""Files that must stay open as long as the process lives."""


def note_file(storage: str, node: str, pid: int) -> Path:
    """Where the process of this id writes down how it ends."""
    return Path(storage, "exits", f"{node[:12]}-{pid}.txt")


def keep_exit_note(file: Path) -> None:
    """Have this process write down a crash or an `os._exit` in this file from now on.

    A storage that cannot be written costs the note and nothing else.
    """
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        note = file.open("w", encoding="utf-8")
        _open_notes.append(note)
        faulthandler.enable(note, all_threads=False)
        # children that are forked end by os._exit, or crash, without ending this process.
        os.register_at_fork(after_in_child=faulthandler.disable)
        _note_exits(note)


def read_exit_note(file: Path) -> str | None:
    """One sentence about how the process ended, and the file is removed; None where it wrote nothing."""
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


def _note_exits(note: IO[str]) -> None:
    leave, mine = os._exit, os.getpid()

    def noted(status: int) -> NoReturn:
        with suppress(OSError, ValueError):
            if os.getpid() == mine:
                caller = sys._getframe(1)
                place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
                note.write(f"the process ended itself with os._exit({status}) at {place}\n")
                note.flush()
        leave(status)

    os._exit = noted


def _place_of(text: str) -> str:
    """The innermost line of the dump that is nobody's library."""
    frames = [(found["file"], found["line"]) for found in _FRAME.finditer(text)]
    own = [(file, line) for file, line in frames if "site-packages" not in file and f"lib{os.sep}python" not in file]
    return f" at {Path(own[0][0]).name}:{own[0][1]}" if own else ""


__all__ = ["discard_exit_note", "keep_exit_note", "note_file", "read_exit_note"]
