"""Runs the planner in a process of its own, which loads torch; stdlib only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_planner(
    request: Mapping[str, Any],
    *,
    code: bytes | None,
    environment: Mapping[str, str],
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Return the planner's answer. If it has `error`, that is one sentence for users. If the task's
    own code raised, the planner's standard error is copied to this process's.

    Args:
        request: see `workers/accordion_workers/planning/__main__.py`, without `parent`.
        code: the zip file of the job's own modules.
        environment: environment variables of the process.
        timeout_s: seconds after which the process is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer_file = Path(folder, "answer.json")
        archive = Path(folder, "code.zip")
        if code is not None:
            archive.write_bytes(code)
        paths = [str(answer_file), *([] if code is None else [str(archive)])]
        try:
            # -P: modules in the current folder must not replace installed ones.
            done = subprocess.run(  # noqa: S603 - a module of this project
                [sys.executable, "-P", "-m", "accordion_workers.planning", *paths],
                input=json.dumps({**request, "parent": os.getpid()}),
                env=dict(environment),
                stdout=sys.stderr,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            sys.stderr.write(str(error.stderr or ""))
            return {
                "error": f"a step could not be measured within {timeout_s:g} s; a smaller"
                " training.global_batch or less data is faster"
            }
        answer: dict[str, Any] = json.loads(answer_file.read_text()) if answer_file.exists() else {}
    if answer.pop("needs_log", not answer):
        sys.stderr.write(done.stderr)
    if not answer:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {
            "error": f"the step cannot be measured on this machine ({last}); it needs the workers'"
            " packages"
        }
    return answer
