"""A task that hangs the first time it is built."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accordion_workers.tasks.digits import DigitsMlp


class HangsOnce(DigitsMlp):
    """Options: `folder` for what is written down, and how it hangs: `stopped`, `lock` or
    `network`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": 8, "min_step_s": 0.0})
        folder = Path(str(options["folder"]))
        if not (folder / "hangs").exists():
            (folder / "hangs").write_text(str(os.getpid()))
            {"stopped": _stop, "lock": _hold_the_lock, "network": _wait}[options["hang"]](folder)


def _stop(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    # the signal goes to another thread, and until that one wakes up this one would run on.
    time.sleep(3600)


def _hold_the_lock(folder: Path) -> None:
    # unlike CDLL, PyDLL does not let other threads run meanwhile.
    ctypes.PyDLL(None).sleep(3600)


def _wait(folder: Path) -> None:
    while not (folder / "answer").exists():
        time.sleep(0.05)
