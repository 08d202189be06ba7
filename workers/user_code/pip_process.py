"""Runs pip in a process of its own, which its caller can stop at any time."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.errors import PackagesError
from workers.secret_mask import mask_url_logins

POLL_S = 0.1
"""Seconds between two calls of `check`."""
MAX_DESCRIPTION_LENGTH = 1000
"""Maximum characters of the description of a failure."""
_OPTIONS = (
    "--disable-pip-version-check",
    "--no-color",
    "--no-input",
    "--only-binary=:all:",
    "--progress-bar=off",
)
"""Options of every call. A package without a wheel would run its own code to be built."""
_OUTAGE = re.compile(
    r"Retrying \(Retry"
    r"|Could not fetch URL .*(connection error|timed out|too many \d+ error|5\d\d Server Error)"
    r"|Read timed out"
    r"|HTTP error 5\d\d"
)
"""What pip logs if an index does not respond."""
_DETAIL = "    "
"""Indentation of the lines that explain an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipFailure:
    """How a run of pip failed."""

    output: str
    """What pip printed."""
    log: str
    """What pip wrote to its log, which has more details, such as URLs that were not fetched."""

    @property
    def is_outage(self) -> bool:
        """Whether an index did not respond."""
        return bool(_OUTAGE.search(self.log))

    def describe(self) -> str:
        """Return the errors and their causes in one line, without logins of URLs."""
        found = [
            line.removeprefix("ERROR:").strip().rstrip(".")
            for line in self.output.splitlines()
            if line.startswith(("ERROR:", _DETAIL)) and "ResolutionImpossible" not in line
        ]
        lines = dict.fromkeys(line for line in found if line)
        printed = self.output.strip().splitlines() or ["it printed nothing"]
        text = "; ".join(lines) or printed[-1]
        return mask_url_logins(text)[:MAX_DESCRIPTION_LENGTH]


def run_pip(
    command: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    check: Callable[[], None],
    pass_fds: Sequence[int] = (),
) -> PipFailure | None:
    """Run pip to its end; return how it failed, if it did.

    `check` is called ten times a second. What it raises is raised here, and pip is killed.

    Raises:
        PackagesError: there is no pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise PackagesError(
            f"pip is not installed for {sys.executable}, and the job names packages; install it"
            " there (python -m ensurepip)"
        )
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        log = Path(folder, "pip.log")
        options = [*_OPTIONS, f"--log={log}"]
        process = subprocess.Popen(  # noqa: S603 - pip, with checked requirements
            [sys.executable, "-P", "-m", "pip", command, *options, *arguments],
            # pip takes some names for files of the current folder.
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
        )
        if _wait_for_end(process, check) == 0:
            return None
        output.seek(0)
        printed = output.read().decode(errors="replace")
        logged = log.read_text(errors="replace") if log.exists() else printed
        return PipFailure(output=printed, log=logged)


def _wait_for_end(process: subprocess.Popen[bytes], check: Callable[[], None]) -> int:
    """Return the exit code of a process, which is killed if `check` raises."""
    try:
        while process.poll() is None:
            check()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode


__all__ = ["POLL_S", "PipFailure", "run_pip"]
