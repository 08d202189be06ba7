"""The job of the recovery bench, the same for all who run it: digits at a steady pace, with a log
of its steps.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from accordion_workers.tasks.digits import DigitsMlp

HIDDEN = 128
PACE_S = 0.05
"""Least seconds of a step, so that a run is long enough for a fault and its logs stay small."""
EVERY_STEPS = 50
"""Steps from one checkpoint to the next."""
GLOBAL_BATCH, MICRO_BATCH = 64, 32
LR, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A worker began a step; the one before it is complete then."""

    time: float
    rank: int
    pid: int
    step: int
    world_size: int


class LoggedDigits(DigitsMlp):
    """Options: `hidden`, `folder` for the logs."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": options["hidden"], "min_step_s": 0.0})
        self._log = StepLog(Path(str(options["folder"])))

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Called for each micro-batch of a step."""
        self._log.begin(step)
        return super().loss(outputs, targets, step=step)


class StepLog:
    """Writes one file for each process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._place = (-1, -1, -1)

    def begin(self, step: int) -> None:
        """Log the step and keep its pace, at the first call for it."""
        rank, world_size = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        )
        if self._place == (step, rank, world_size):
            return
        self._place = (step, rank, world_size)
        line = Step(time=time.time(), rank=rank, pid=os.getpid(), step=step, world_size=world_size)
        with self._path.open("a") as log:
            log.write(json.dumps(asdict(line)) + "\n")
        time.sleep(PACE_S)


def read_steps(folder: Path) -> list[Step]:
    """All that was logged, in order of time."""
    lines = (
        line
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    )
    # A killed process may leave half a line.
    steps = (Step(**json.loads(line)) for line in lines if line.endswith("}\n"))
    return sorted(steps, key=lambda step: step.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How training went on in another constellation: with a process that is new, or with another
    world size.
    """

    seconds: float
    """From the fault to the first step completed by the new constellation."""
    stood_still_s: float
    """From the last step that the old constellation began to that one."""
    rolled_back: int
    """Steps that were made twice."""
    world_size: int


def recovery_after(steps: Iterable[Step], fault: float) -> Recovery | None:
    """Return the recovery from the fault; None while no step of a new constellation is complete."""
    old, new = [], []
    pids, world_size = set[int](), 0
    for step in steps:
        if step.time <= fault:
            pids.add(step.pid)
            world_size = step.world_size
        is_new = step.time > fault and (step.pid not in pids or step.world_size != world_size)
        (new if is_new else old).append(step)
    completed = next((step for step in new if any(_follows(step, before) for before in new)), None)
    if completed is None or not old:
        return None
    last = max(step.step for step in old)
    return Recovery(
        seconds=completed.time - fault,
        stood_still_s=completed.time - max(step.time for step in old if step.time < new[0].time),
        rolled_back=max(0, last - new[0].step),
        world_size=completed.world_size,
    )


def longest_pause(steps: Sequence[Step], fault: float) -> Recovery:
    """Where training went on in the same constellation: its longest time without a step after the
    fault.
    """
    after = [step for step in steps if step.time > fault]
    times = [max(step.time for step in steps if step.time <= fault), *(step.time for step in after)]
    pause_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    made = Counter((step.rank, step.step) for step in steps)
    again = len({step for (_, step), count in made.items() if count > 1})
    return Recovery(
        seconds=pause_s, stood_still_s=pause_s, rolled_back=again, world_size=after[-1].world_size
    )


def _follows(step: Step, before: Step) -> bool:
    """Whether the same worker began the one and then the other."""
    return (before.pid, before.world_size, before.step + 1) == (
        step.pid,
        step.world_size,
        step.step,
    )
