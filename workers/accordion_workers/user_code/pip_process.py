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

from packaging.utils import canonicalize_name

from accordion_workers.common.errors import PackagesError
from accordion_workers.common.secret_mask import mask_url_logins

POLL_S = 0.1
"""Seconds between two calls of `raise_if_stopped`."""
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
_BROKEN = re.compile(
    r"Read timed out|Max retries exceeded(?!.*SSL)|IncompleteRead|ProtocolError"
    r"|Connection (aborted|broken|reset)|HTTP error (429|5\d\d)|\b(429|5\d\d) (Client|Server) Error"
)
"""What an error of pip says if an index does not respond."""
_MISSING = re.compile(r"No matching distribution found for ([\w.-]+)")
"""Error for a package that no index has, or whose page was not fetched."""
_NOT_FETCHED = (
    r"Could not fetch URL \S*/{name}/?: "
    r".*(connection error|timed out|too many \d+ error|\b(429|5\d\d) (Client|Server) Error)"
)
"""What pip logs if an index does not respond to a request for the page of a package."""
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
        """Whether an index did not respond; requests that succeeded later do not count."""
        _, _, error = f"\n{self.output}".partition("\nERROR:")
        if missing := _MISSING.search(error):
            name = re.escape(canonicalize_name(missing[1]))
            return re.search(_NOT_FETCHED.format(name=name), self.log) is not None
        return _BROKEN.search(error) is not None

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
    raise_if_stopped: Callable[[], None],
    pass_fds: Sequence[int] = (),
) -> PipFailure | None:
    """Run pip to its end; return how it failed, if it did.

    `raise_if_stopped` is called ten times a second. What it raises is raised here, and pip is
    killed.

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
        if _wait_for_end(process, raise_if_stopped) == 0:
            return None
        output.seek(0)
        printed = output.read().decode(errors="replace")
        logged = log.read_text(errors="replace") if log.exists() else printed
        return PipFailure(output=printed, log=logged)


def _wait_for_end(process: subprocess.Popen[bytes], raise_if_stopped: Callable[[], None]) -> int:
    """Return the exit code of a process, which is killed if `raise_if_stopped` raises."""
    try:
        while process.poll() is None:
            raise_if_stopped()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode


__all__ = ["POLL_S", "PipFailure", "run_pip"]
