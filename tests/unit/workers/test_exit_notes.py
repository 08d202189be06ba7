"""What a process writes down when its own code ends it, and what is read of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accordion_workers.worker.exit_notes import exit_note_path, read_exit_note
from tests.programs import run_program


def note_of(folder: Path, body: str) -> str | None:
    """What a process that runs this leaves behind."""
    file = exit_note_path(str(folder), "n" * 56, 7)
    code = folder / "task.py"
    code.write_text(
        "from pathlib import Path\n"
        "from accordion_workers.worker.exit_notes import enable_exit_note\n"
        f"enable_exit_note(Path({str(file)!r}))\n{body}\n"
    )
    subprocess.run(
        [sys.executable, str(code)],
        cwd=Path(__file__).parents[3],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    return read_exit_note(file)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import os; os._exit(3)", "the process ended itself with os._exit(3) at task.py:4"),
        (
            "import ctypes; ctypes.string_at(0)",
            "the process crashed with segmentation fault at task.py:4",
        ),
        ("import os; os.abort()", "the process crashed with aborted at task.py:4"),
        (f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})", None),
        ("import os\nif os.fork():\n    os.wait()\nelse:\n    os._exit(1)", None),
    ],
)
def test_what_ended_a_process_is_told_with_its_line(
    tmp_path: Path, body: str, told: str | None
) -> None:
    assert note_of(tmp_path, body) == told
    assert list((tmp_path / "exits").iterdir()) == []


def test_a_storage_that_cannot_be_written_costs_the_note_only(tmp_path: Path) -> None:
    (tmp_path / "exits").write_text("no folder")
    assert note_of(tmp_path, "print('went on')") is None


def test_there_is_no_note_of_a_process_that_was_never_there(tmp_path: Path) -> None:
    assert read_exit_note(tmp_path / "exits" / "none.txt") is None


FLUSHED = """import os
from pathlib import Path
from accordion_workers.worker.exit_notes import enable_exit_note
def flush():
    with open({flushed!r}, "a") as file:
        print(os.getpid(), file=file)
    raise RuntimeError
enable_exit_note(Path({note!r}), before_exit=flush)
if not os.fork():
    os._exit(1)
os.wait()
print(os.getpid(), flush=True)
os._exit(3)
"""


def test_process_that_ends_itself_calls_the_hook_first_and_its_children_do_not(
    tmp_path: Path,
) -> None:
    flushed = tmp_path / "flushed"
    code = FLUSHED.format(flushed=str(flushed), note=str(tmp_path / "exits" / "note.txt"))
    root = Path(__file__).parents[3]
    ended = run_program([sys.executable, "-c", code], cwd=root)
    assert (flushed.read_text(), ended.returncode) == (ended.stdout, 3)
