"""What every fault has to leave as it was, and the table of what it cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accordion_workers.records.contract import Started
from tests.elastic.conftest import Life, place, wait_for
from tests.elastic.watched import Step, let_go, steps

EPOCHS, SAMPLES = 6, 1437
EVERY_STEPS = 10
HOLD_FROM = 92
"""Far enough from the last step, 138, that a job which is held is there when a slow machine has
done all it should.
"""
MOST_ROLLED_BACK = 2 * EVERY_STEPS
"""A checkpoint that is being written does not count, and the next one waits until it is."""


def job(folder: Path, **parts: Any) -> dict[str, Any]:
    """Two workers, six epochs of 23 steps, about 6 s of training; an exact method and an even
    division, so that nothing may differ.

    It is held near its end until `Watched.survived` is called.
    """
    options = {
        "hidden": 32,
        "folder": str(folder),
        "pace_s": 0.04,
        "hold_from": HOLD_FROM,
        **parts.pop("options", {}),
    }
    return {
        "task": {"name": "tests.elastic.watched:WatchedDigits", "options": options},
        "training": {"epochs": EPOCHS, **parts.pop("training", {})},
        "compression": {"method": "none"},
        "workers": {"min": 2, "max": 2, "balance": False, **parts.pop("workers", {})},
        "checkpoint": {"every_steps": EVERY_STEPS, **parts.pop("checkpoint", {})},
        **parts,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One row of the table."""

    fault: str
    engine: str
    seconds: float | None
    """From the fault to the next step; None where training never stood still."""
    rolled_back: int
    seen_twice: int
    """Samples of an epoch that the surviving history trained on more than once, or never."""


COSTS: list[Cost] = []
"""Costs of the test that runs."""


@dataclass
class Watched:
    """A job, and what its workers wrote down."""

    life: Life
    folder: Path
    faults: list[float] = field(default_factory=list)

    def step(self) -> int:
        """The newest step that was begun."""
        return max((step.step for step in steps(self.folder)), default=-1)

    def reach(self, step: int) -> None:
        """Go on until this step was begun."""
        wait_for(lambda: self.life.look() is not None or self.step() >= step, self.life.story)
        assert self.step() >= step

    def sizes(self) -> list[int]:
        """World sizes of the groups that reported their start."""
        return [started.world_size for started in self.life.all(Started)]

    def wait_for_sizes(self, *sizes: int) -> None:
        """Go on until groups of these sizes have started, in this order; others may lie between."""

        def came() -> bool:
            rest = iter(self.sizes())
            return all(size in rest for size in sizes)

        wait_for(lambda: self.life.look() is not None or came(), self.life.story)
        assert came(), self.sizes()

    def fault(self) -> None:
        """It happens now."""
        self.faults.append(time.time())

    def surviving(self) -> list[Step]:
        """What the worker groups did that nobody did again."""
        kept: list[Step] = []
        for started, lines in self._by_group():
            kept = [line for line in kept if line.step < started.step] + lines
        return kept

    def _by_group(self) -> Iterator[tuple[Started, list[Step]]]:
        """What each group did. Who goes on for a while after it lost its supervisor is no part of
        the next one.

        A group tells that it started when all have their models, and some may have begun a step by
        then.
        """
        groups = [
            (record.time, record.payload) for record in self.life.records if is_started(record)
        ]
        lines = steps(self.folder)
        before = 0.0
        for told, started in groups:
            here = [line for line in lines if before <= line.built < told]
            members = {
                line.rank: (line.pid, line.built) for line in here if line.step == started.step
            }
            yield (
                started,
                [line for line in here if members.get(line.rank) == (line.pid, line.built)],
            )
            before = told

    def disorder(self) -> str:
        """Which steps of the surviving history are not whole, for a test that fails."""
        whole = {
            step: sum(len(line.samples) for line in self.surviving() if line.step == step)
            for step in range(200)
        }
        odd = {
            step: samples for step, samples in whole.items() if samples not in (0, 64, SAMPLES % 64)
        }
        groups = [(started.step, started.world_size) for started in self.life.all(Started)]
        lines = [line for line in steps(self.folder) if line.step in odd]
        return (
            f"groups {groups}, odd {odd}:"
            f" {[(line.step, line.rank, line.pid, len(line.samples)) for line in lines]}"
        )

    def seen_twice(self) -> int:
        """Samples that some epoch of the surviving history did not visit exactly once."""
        wrong = 0
        steps_per_epoch = -(-SAMPLES // 64)
        for epoch in range(EPOCHS):
            lines = [line for line in self.surviving() if line.step // steps_per_epoch == epoch]
            visits = Counter(sample for line in lines for sample in line.samples)
            wrong += sum(visits[sample] != 1 for sample in range(SAMPLES))
        return wrong

    def survived(self, fault: str) -> Cost:
        """Wait for the end and look at everything that must be as if nothing had happened; note
        what it cost.
        """
        let_go(self.folder)
        end = self.life.end()
        assert (end.status, end.reason) == ("SUCCEEDED", "COMPLETED"), end
        assert sorted(self.life.epochs) == list(range(EPOCHS))
        assert self.seen_twice() == 0, self.disorder()
        assert all(self.began_where_it_could(fault) for fault in self.faults), self.life.story()
        rolled_back = max(
            (started.steps_rolled_back for started in self.life.all(Started)), default=0
        )
        assert rolled_back <= MOST_ROLLED_BACK
        cost = Cost(
            fault=fault,
            engine=self.life.launch.spec.workers.engine,
            seconds=self._seconds(),
            rolled_back=rolled_back,
            seen_twice=self.seen_twice(),
        )
        COSTS.append(cost)
        return cost

    def began_where_it_could(self, fault: float) -> bool:
        """Whether the group after a fault lost nothing that was in a whole checkpoint when it
        happened.
        """
        later = [
            record.payload.step
            for record in self.life.records
            if is_started(record) and record.time > fault
        ]
        whole = [
            r.payload.step
            for r in self.life.records
            if r.payload.kind == "checkpoint" and r.time <= fault
        ]
        return not later or later[0] >= max(whole, default=0)

    def _seconds(self) -> float | None:
        """From the last fault to the first step of the group that came after it."""
        if not self.faults:
            return None
        groups = [
            record.time
            for record in self.life.records
            if is_started(record) and record.time > self.faults[-1]
        ]
        later = [line.time for line in steps(self.folder) if groups and line.time >= groups[0]]
        return later[0] - self.faults[-1] if later else None

    def has_whole_history(self) -> bool:
        """Whether the scheduler was given every record once, in order."""
        life = self.life
        held = life.backend.history(life.launch.job_id, life.launch.storage).records
        places = [place(record) for record in life.records]
        return places == sorted(set(places)) == [place(record) for record in held]

    def parameters(self) -> dict[str, torch.Tensor]:
        """Parameters of the last checkpoint."""
        newest = sorted(Path(self.life.launch.storage, "checkpoints").glob("g*/manifest.json"))[-1]
        return torch.load(newest.parent / "shared.pt", weights_only=True)["model"]


def is_started(record: Any) -> bool:
    return isinstance(record.payload, Started)


def equal(ones: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return ones.keys() == others.keys() and all(
        torch.equal(ones[name], others[name]) for name in ones
    )


def table(costs: list[Cost]) -> str:
    """What the faults cost, for people."""
    widths = (44, 10, 9, 15, 18, 19)
    head = (
        "fault",
        "engine",
        "survived",
        "s to next step",
        "steps rolled back",
        "samples seen twice",
    )
    lines = [head, *map(_cells, costs)]
    return "\n".join(" ".join(map(_aligned, line, widths)) for line in lines)


def _cells(cost: Cost) -> tuple[str, ...]:
    seconds = "-" if cost.seconds is None else f"{cost.seconds:.1f}"
    return (cost.fault, cost.engine, "yes", seconds, str(cost.rolled_back), str(cost.seen_twice))


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() or cell == "-" else cell.ljust(width)
