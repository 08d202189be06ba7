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
    """Return the planner's answer; one with `error` has one sentence for users, and then what the
    planner wrote goes to standard error.

    Args:
        request: see `workers/planning/__main__.py`.
        code: the zip file of the job's own modules.
        environment: environment variables of the process.
        timeout_s: seconds after which the process is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer_file = Path(folder, "answer.json")
        variables = dict(environment)
        if code is not None:
            archive = Path(folder, "code.zip")
            archive.write_bytes(code)
            paths = (str(archive), variables.get("PYTHONPATH", ""))
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        try:
            # -P: modules in the current folder must not replace installed ones.
            done = subprocess.run(  # noqa: S603 - a module of this project
                [sys.executable, "-P", "-m", "workers.planning", str(answer_file)],
                input=json.dumps(request),
                env=variables,
                stdout=sys.stderr,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return {
                "error": f"a step could not be measured within {timeout_s:g} s; a smaller"
                " training.global_batch or less data is faster"
            }
        answer: dict[str, Any] = json.loads(answer_file.read_text()) if answer_file.exists() else {}
    if "error" in answer or not answer:
        sys.stderr.write(done.stderr)
    if not answer:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {
            "error": f"the step cannot be measured here ({last}); run this where the workers'"
            " packages are installed"
        }
    return answer
