"""Crashes of a test process leave a trace, and what is known to crash one is not done."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import last_start
from tests.architecture.source import ROOT
from tests.programs import run_program

CRASH = "import atexit, ctypes\n\n\ndef test_ok():\n    atexit.register(ctypes.string_at, 0)\n"
CRASHING_DESTRUCTOR = """
import ctypes, sys, types

def test_ok():
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.abort, None, None)
    sys.modules["ray._raylet"] = types.ModuleType("ray._raylet")

def test_fails(): assert False
"""

LOADS_RAY = """
import sys, types

def test_ok(): sys.modules["ray._raylet"] = types.ModuleType("ray._raylet")
"""

CRASHES_AT = """
import os, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_many(number):
    if number == {crashing}: os.abort()
"""
HANGS = """
import time

def test_hangs(): time.sleep(200)
def test_ok(): pass
"""

PLUGINS = ("-p", "xdist", "-p", "pytest_timeout")
"""Plugins of our settings and options; all that are installed take a second in each process."""
OUR_SCHEDULER = ("--noconftest", "-p", "tests.crashed_processes", "--dist", "loadfile")


def run_pytest(
    folder: Path, test: str, *options: str, raising: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a test file in a process of its own; `raising` names a hook of pytest that raises
    in it.
    """
    hook = f"def {raising}(): raise RuntimeError('broken on purpose')\n" if raising else ""
    (folder / "conftest.py").write_text(f"from tests.conftest import *\n{hook}")
    (folder / "test_it.py").write_text(test)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "pyproject.toml",
        "-p",
        "no:cacheprovider",
        *PLUGINS,
        *options,
        str(folder),
    ]
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "ACCORDION_CRASHES": str(folder / "crashes"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return run_program(command, cwd=ROOT, env=env)


def test_no_test_begins_after_the_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_start, "LAST_START", time.time() + 60)
    last_start.pytest_runtest_setup()
    monkeypatch.setattr(last_start, "LAST_START", time.time() - 1)
    with pytest.raises(pytest.skip.Exception, match="NOT RUN"):
        last_start.pytest_runtest_setup()


def test_only_the_common_conftest_configures_the_logs_of_services() -> None:
    changes = ("structlog.configure(", "structlog.reset_defaults(")
    files = [
        file
        for file in (ROOT / "tests").rglob("*.py")
        if any(text in file.read_text() for text in changes)
    ]
    assert set(files) - {Path(__file__)} == {ROOT / "tests/conftest.py"}


def test_a_test_process_that_crashes_at_its_exit_leaves_its_stacks(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CRASH)
    assert "1 passed" in done.stdout
    assert done.returncode == -signal.SIGSEGV
    [trace] = (file.read_text() for file in (tmp_path / "crashes").iterdir() if file.stat().st_size)
    assert "Fatal Python error: Segmentation fault" in trace
    assert "in string_at" in trace


def test_a_destructor_of_rays_library_does_not_change_what_the_tests_found(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CRASHING_DESTRUCTOR)
    assert "1 failed, 1 passed" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("hook", ["pytest_terminal_summary", "pytest_unconfigure"])
def test_an_error_after_the_tests_is_no_success_where_ray_is_loaded(
    tmp_path: Path, hook: str
) -> None:
    done = run_pytest(tmp_path, LOADS_RAY, raising=hook)
    assert "broken on purpose" in done.stderr
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("files", "tests", "crashing"), [(1, 1, 0), (2, 1, 0), (3, 3, 0), (6, 3, 2), (6, 3, None)]
)
def test_a_crash_fails_one_test_and_the_others_still_run(
    tmp_path: Path, files: int, tests: int, crashing: int | None
) -> None:
    for number in range(files):
        test = CRASHES_AT.format(tests=tests, crashing=crashing if number == files // 2 else None)
        (tmp_path / f"test_{number}.py").write_text(test)
    done = run_pytest(tmp_path, "", *OUR_SCHEDULER, "-n", "2")
    crashes = int(crashing is not None)
    passed = files * tests - crashes
    counts = [f"{crashes} failed"] * crashes + [f"{passed} passed"] * (passed > 0)
    assert ", ".join(counts) in done.stdout.splitlines()[-1]
    assert done.returncode == crashes


def test_a_second_crash_finds_the_process_that_replaces_the_first(tmp_path: Path) -> None:
    for number in range(4):
        test = CRASHES_AT.format(tests=3, crashing=0 if number < 3 else None)
        (tmp_path / f"test_{number}.py").write_text(test)
    done = run_pytest(tmp_path, "", *OUR_SCHEDULER, "-n", "3")
    assert "3 failed, 9 passed" in done.stdout.splitlines()[-1]


def test_a_test_that_hangs_in_native_code_ends_its_process(tmp_path: Path) -> None:
    limits = ["-o", "timeout=0", "-o", "faulthandler_timeout=1"]
    done = run_pytest(tmp_path, HANGS, *OUR_SCHEDULER, "-n", "1", *limits)
    assert "1 failed, 1 passed" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
