"""The peer for PowerSGD by its own code: the package of github.com/epfml/powersgd, from a clone
outside of this repository that `ACCORDION_BENCH_POWERSGD` names.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.programs import run_program

VARIABLE = "ACCORDION_BENCH_POWERSGD"


def find_clone() -> Path | None:
    """Return the clone that the variable names; None without one.

    Raises:
        LookupError: the variable names a folder without the package.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    if not (Path(named) / "powersgd" / "powersgd.py").is_file():
        raise LookupError(
            f"{VARIABLE} is {named!r}, which has no powersgd/powersgd.py; name a clone of"
            " https://github.com/epfml/powersgd"
        )
    return Path(named).resolve()


def describe_package() -> str:
    """Return which code runs, and its commit; or that it is absent."""
    clone = find_clone()
    if clone is None:
        return f"absent: {VARIABLE} names no clone"
    commit, changed = (_git(clone, *words) for words in (("rev-parse", "HEAD"), ("status", "-s")))
    return f"epfml/powersgd at {commit[:12] or 'no commit'}{' with changes' if changed else ''}"


class PackagePowerSGD:
    """The package's aggregator with both factors a step, from the first step on; the gradients keep
    the residual.
    """

    def __init__(self, parameters: Sequence[Tensor], *, rank: int) -> None:
        sys.path.insert(0, str(find_clone()))
        self._package: Any = importlib.import_module("powersgd")
        config = self._package.Config(
            rank=rank, num_iters_per_step=2, start_compressing_after_num_steps=0
        )
        self._aggregator = self._package.PowerSGD(list(parameters), config=config)

    def take_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients, and take the optimizer's step with the averages."""
        self._package.optimizer_step(optimizer, self._aggregator)


def _git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), *words]
    return run_program(command).stdout.strip()
