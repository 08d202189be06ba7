"""Crashes of a test process leave a trace, and what is known to crash one is not done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT

CRASH = "import atexit, ctypes\n\n\ndef test_ok():\n    atexit.register(ctypes.string_at, 0)\n"


def test_only_the_common_conftest_configures_the_logs_of_services() -> None:
    changes = ("structlog.configure(", "structlog.reset_defaults(")
    files = [file for file in (ROOT / "tests").rglob("*.py") if any(text in file.read_text() for text in changes)]
    assert set(files) - {Path(__file__)} == {ROOT / "tests/conftest.py"}


def test_a_test_process_that_crashes_at_its_exit_leaves_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(CRASH)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider"]
    crashes = tmp_path / "crashes"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "ACCORDION_CRASHES": str(crashes)}
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout
    assert done.returncode == -signal.SIGSEGV
    [trace] = (file.read_text() for file in crashes.iterdir())
    assert "Fatal Python error: Segmentation fault" in trace
    assert "in string_at" in trace
