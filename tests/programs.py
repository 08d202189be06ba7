"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


def run_program(
    command: Sequence[str], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it wrote; `options` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)
