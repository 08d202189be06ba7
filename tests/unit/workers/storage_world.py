"""A job whose groups of one worker train for real, one after the other, on an object store in
memory that fails.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from accordion_workers.hub.journal import Journal, claim_generation, read_records
from accordion_workers.records.contract import (
    DesiredState,
    EpochRecord,
    JobSpec,
    Launch,
    Payload,
    Record,
    Started,
)
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import LoopControl, NoLink, WorkerContext
from accordion_workers.training.loop import train_job
from tests.unit.workers.faulty import STORE, Fault, Gone, Group

EPOCHS, SAMPLES = 2, 4
TICK_S = 0.1


class Counted(nn.Module):
    """A model that knows how often it was trained on which sample of which epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("visits", torch.zeros(EPOCHS, SAMPLES))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class CountingTask:
    """Two steps an epoch."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.built = Counted()

    def model(self) -> nn.Module:
        self.built = Counted()
        return self.built

    def train_data(self) -> Any:
        return Numbers()

    def eval_data(self) -> Any:
        return Numbers()

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        if self.built.training:
            self.built.visits[step // 2, targets.long()] += 1
        return (outputs - targets).square().mean()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {}


class Numbers:
    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return indices.float(), indices.float()


@dataclass
class JournalLink(NoLink):
    """Keeps records as rank 0 does, and lets the test act when the group has begun."""

    journal: Journal
    group: Group
    on_started: Callable[[], object] = bool
    on_line: Callable[[str], object] = bool
    """Hears each line of the job's log."""
    lines: list[str] = field(default_factory=list)
    callback: Callable[[DesiredState], None] = bool  # type: ignore[assignment]
    outcome: str = "gone"
    control: LoopControl = field(default_factory=LoopControl)

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        self.callback = callback

    def order(self, stop: Any) -> None:
        """People stop the job."""
        self.callback(DesiredState(version=1, stop=stop))

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        self.post(started)
        self.on_started()

    def post(self, payload: Payload) -> None:
        if not self.group.killed:
            self.journal.write(payload)

    def log(self, text: str) -> None:
        self.lines.append(text)
        self.on_line(text)


OnLine = Callable[[JournalLink, str], object]


def _hear_nothing(link: JournalLink, line: str) -> None:
    """Let a line of the job's log pass."""


class Job:
    """One job, its storage and its groups."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        checkpoint = {"storage": "faulty:///bucket", "keep": 1, **settings}
        training = {"epochs": EPOCHS, "global_batch": 2, "micro_batch": 2}
        task = {"name": f"{__name__}:CountingTask"}
        parts = {"compression": {"method": "none"}, "workers": {"min": 1, "max": 1}}
        spec = JobSpec.model_validate(
            {"task": task, "training": training, "checkpoint": checkpoint, **parts}
        )
        self.folder = folder
        self.launch = Launch(job_id="job-1", attempt=1, workers=1, storage=str(folder), spec=spec)
        STORE.files.clear()

    def run(
        self,
        group: Group,
        on_started: Callable[[], object] = bool,
        on_line: Callable[[JournalLink, str], object] = _hear_nothing,
    ) -> JournalLink:
        """Train until the end, or until the group is gone."""
        STORE.group = group
        generation = claim_generation(self.folder)
        attempt = self.launch.attempt
        journal = Journal(self.folder, attempt=attempt, generation=generation, clock=lambda: 0.0)
        link = JournalLink(journal, group, on_started)
        link.on_line = partial(on_line, link)
        place = {"generation": generation, "rank": 0, "world_size": 1, "device": "cpu"}
        with suppress(Gone):
            context = WorkerContext(launch=self.launch, link=link, control=link.control, **place)
            link.outcome = train_job(context, watched_clock(group))
        return link

    def disturb(self, fault: Fault, at: int) -> Group:
        """Have one call of the first group go wrong, and train on to the end."""
        first = Group(at=at, fault=fault)
        self.run(first)
        if fault == "delay" and first.gone:
            second = Group()
            self.run(second, lambda: (first.let_arrive(), setattr(second, "gone", True)))
        if first.gone:
            self.run(Group())
        return first

    def history(self) -> dict[int, EpochRecord]:
        """What is left of the records, as a database keeps them."""
        kept: dict[int, EpochRecord] = {}
        for record in read_records(self.folder):
            kept = _after(kept, record)
        return kept

    def visits(self) -> Tensor:
        """How often the newest checkpoint was trained on which sample."""
        files = {
            str(path): path.read_bytes() for path in self.folder.glob("checkpoints/*/shared.pt")
        } or STORE.files
        newest = max(name for name in files if name.endswith("shared.pt"))
        return torch.load(io.BytesIO(files[newest]), weights_only=True)["model"]["visits"]


def _after(kept: dict[int, EpochRecord], record: Record) -> dict[int, EpochRecord]:
    match record.payload:
        case Started(epoch=begun):
            return {epoch: row for epoch, row in kept.items() if epoch < begun}
        case EpochRecord() as row:
            return {**kept, row.epoch: row}
    return kept


def watched_clock(group: Group) -> Clock:
    """A clock on which each look takes some time and waiting takes none.

    The group's own thread ends when it looks at it and the group is gone.
    """
    time = [0.0]

    def elapsed() -> float:
        group.check()
        time[0] += TICK_S
        return time[0]

    def sleep(seconds: float) -> None:
        group.check()
        time[0] += seconds

    return Clock(elapsed=elapsed, now=elapsed, sleep=sleep)
