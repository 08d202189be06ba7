"""One of two worker processes of the training step, each alone on its host: `step_worker.py RANK
ADDRESS`.

Commands come as JSON lines on standard input, answers leave on standard output as JSON lines behind
an `@`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.bench.contestants import ALONE, CONTESTANTS, Accordion, Contestant, CostAware
from tests.bench.timing import Copy, seconds_of

BATCH = 8
"""Pictures a worker."""
CHECK_STEPS = 8
PATIENCE = timedelta(seconds=120)


class Workplace:
    """All contestants of this rank and the pictures they train on."""

    def __init__(self, rank: int) -> None:
        draw = torch.Generator().manual_seed(rank)
        self._images = torch.randn(BATCH, 3, 32, 32, generator=draw)
        self._labels = torch.randint(0, 10, (BATCH,), generator=draw)
        self._contestants: dict[str, Contestant] = {
            name: make() for name, make in CONTESTANTS.items()
        }
        self._copy = Copy()
        self._processor_s: dict[str, float] = {}

    def check(self) -> dict[str, Any]:
        """Whether the contestants do what they are said to do, before anybody is timed."""
        losses = {
            name: [self._step(name).item() for _ in range(CHECK_STEPS)]
            for name in self._contestants
        }
        for name, values in losses.items():
            assert values[-1] < 0.9 * values[0], f"{name} does not learn: {values}"
        parameters = {
            name: contestant.parameters() for name, contestant in self._contestants.items()
        }
        for name, values in parameters.items():
            assert name == ALONE or apart(values) == 0.0, f"{name}: the workers' parameters differ"
        assert torch.equal(parameters["ddp"], parameters["none"]), (
            "none does not give what plain DDP gives"
        )
        same = torch.equal(parameters["accordion"], parameters["accordion following"])
        assert same, "following the optimizer does not give what session.step() gives"
        return {name: (values[0], values[-1]) for name, values in losses.items()}

    def measure(self, steps: Mapping[str, int], rounds: int) -> dict[str, Any]:
        """Seconds a step by contestant in every round; payload bytes and processor seconds
        a step.
        """
        for name in steps:
            for _ in range(self._contestants[name].settling_steps):
                self._step(name)
        self._processor_s = dict.fromkeys(steps, 0.0)
        before = {name: self._contestants[name].payload for name in steps}
        found = [self._round(steps, turned=turn % 2 == 1) for turn in range(rounds)]
        payload = {
            name: (self._contestants[name].payload - before[name]) / (number * rounds)
            for name, number in steps.items()
        }
        busy = {name: self._processor_s[name] / (number * rounds) for name, number in steps.items()}
        plans = {
            name: contestant.exchange_plan
            for name in steps
            if isinstance(contestant := self._contestants[name], Accordion)
        }
        levels = {
            name: contestant.levels
            for name in steps
            if isinstance(contestant := self._contestants[name], CostAware)
        }
        return {
            "rounds": found,
            "payload": payload,
            "processor_s": busy,
            "plans": plans,
            "levels": levels,
        }

    def _round(self, steps: Mapping[str, int], *, turned: bool) -> dict[str, float]:
        """Every second round goes the other way round, so that nobody always follows the same
        neighbour.
        """
        seconds = {}
        for name, number in reversed(steps.items()) if turned else steps.items():
            dist.barrier()
            busy = time.process_time()
            seconds[name] = seconds_of(lambda name=name: self._step(name), number)
            self._processor_s[name] += time.process_time() - busy
        dist.barrier()
        return seconds | {"copy": seconds_of(self._copy, 3)}

    def _step(self, name: str) -> torch.Tensor:
        return self._contestants[name].step(self._images, self._labels)


def apart(values: torch.Tensor) -> float:
    """Largest difference to rank 0's values."""
    first = values.clone()
    dist.broadcast(first, 0)
    return float((first - values).abs().max())


def main(rank: int, address: str) -> None:
    torch.set_num_threads(1)
    # A host has a processor of its own: its threads, ours and the network's, share that one and no
    # other.
    os.sched_setaffinity(0, {rank % len(os.sched_getaffinity(0))})
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=PATIENCE)
    workplace = Workplace(rank)
    commands = {"check": workplace.check, "measure": workplace.measure}
    for line in sys.stdin:
        asked = json.loads(line)
        answer = commands[asked.pop("do")](**asked)
        print(f"@{json.dumps(answer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
