"""A task that writes down which worker trained on which samples, and in which faults can be planted
exactly.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from accordion_workers.data import Data
from accordion_workers.tasks.digits import DigitsMlp

IN_FLIGHT_S = 0.5
"""How long the peers of a worker that is to die in a collective stay away from it."""
HELD_S = 2.5
"""Least seconds of a step of a job that is held: its groups come to step boundaries, and in time
back from a broken one (`RETURN_S` of `controller/attempt.py`), and it takes minutes to its end.
"""
LOOK_S = 0.02
"""Distance between two looks whether a job is still held."""
NO_DIGITS = "ACCORDION_TEST_NO_DIGITS"
"""Name of a variable of nodes on which the digits are missing."""
_LET_GO = "let-go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A worker trained on one micro-batch of a step."""

    time: float
    built: float
    """When this process made the model that trains, once for each group it is in; before any of the
    group trains.
    """
    pid: int
    rank: int
    world_size: int
    step: int
    samples: tuple[int, ...]


class WatchedDigits(DigitsMlp):
    """Options: `hidden`, `folder` for what is written down, `pace_s` (least seconds of a step), and
    a fault.

    From step `hold_from` on the job is held until its test calls `let_go`: it does not end before
    the test has seen all that it waits for, on a slow machine too.

    `fault` is `backward` or `collective`: the process of rank `fault_rank` kills itself there in
    step `fault_step`, once in the life of the job. On a node that was started with `NO_DIGITS` in
    its environment it cannot be built.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": options["hidden"], "min_step_s": 0.0})
        if NO_DIGITS in os.environ:
            raise FileNotFoundError("the digits are not on this node")
        self._options = options
        self._folder = Path(str(options["folder"]))
        self._file = self._folder / f"{os.getpid()}.jsonl"
        self._read: tuple[int, ...] = ()
        self._begun = (-1, 0.0)

    def model(self) -> nn.Module:
        """Kept, to see whether it trains."""
        self._built = time.time()
        self._model = super().model()
        return self._model

    def train_data(self) -> Data:
        """The digits; who reads them is written down."""
        return _WatchedData(super().train_data(), self._note)

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Called for each micro-batch."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._keep_pace(step)
        # a worker without samples in a batch only takes part, in evaluation mode and with weight 0.
        samples = self._read if self._model.training else ()
        line = Step(
            time=time.time(),
            built=self._built,
            pid=os.getpid(),
            rank=rank,
            world_size=world_size,
            step=step,
            samples=samples,
        )
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        self._break(outputs, rank, step)
        return super().loss(outputs, targets, step=step)

    def _note(self, samples: Sequence[int]) -> None:
        self._read = tuple(samples)

    def _keep_pace(self, step: int) -> None:
        last, begun = self._begun
        if step != last:
            while (left := begun + self._least_s(step) - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_S))
            self._begun = (step, time.monotonic())

    def _least_s(self, step: int) -> float:
        is_held = (
            step >= int(self._options.get("hold_from", step + 1))
            and not (self._folder / _LET_GO).exists()
        )
        return HELD_S if is_held else float(self._options.get("pace_s", 0.0))

    def _break(self, outputs: Tensor, rank: int, step: int) -> None:
        if step != int(self._options.get("fault_step", -1)) or (self._folder / "broken").exists():
            return
        mine = rank == int(self._options["fault_rank"])
        if self._options["fault"] == "backward" and mine:
            outputs.register_hook(lambda _: self._die())
        elif self._options["fault"] == "collective" and mine:
            threading.Timer(IN_FLIGHT_S / 2, self._die).start()
        elif self._options["fault"] == "collective":
            time.sleep(IN_FLIGHT_S)

    def _die(self) -> None:
        # in one piece: each micro-batch of the step has a timer, and the first one ends the others'
        # writing.
        told = self._folder / f"broken-{threading.get_ident()}"
        told.write_text(str(time.time()))
        told.rename(self._folder / "broken")
        os.kill(os.getpid(), signal.SIGKILL)


class _WatchedData:
    def __init__(self, data: Data, note: Any) -> None:
        self._data, self._note = data, note

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples and note their indices."""
        self._note(indices.tolist())
        return self._data.batch(indices)


def let_go(folder: Path) -> None:
    """Hold the job no longer."""
    (folder / _LET_GO).touch()


def steps(folder: Path) -> list[Step]:
    """What was written down, by time; a line that its writer's end cut short is left out."""
    found = []
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            found.append(Step(**{**fields, "samples": tuple(fields["samples"])}))
    return sorted(found, key=lambda step: step.time)
