"""Programs of two processes that train with a framework, for tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.programs import run_program

ROOT = Path(__file__).parents[2]


def run_framework(script: str, framework: str, folder: Path, *, timeout_s: float) -> Any:
    """Run a script of this folder under torchrun; return what it printed, as JSON after `@`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run_program(
        [*command, str(Path(__file__).with_name(script)), framework, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("@")]
    return json.loads(line[1:])
