"""Jobs for the training loop in plain gloo groups, with a link that only remembers.

Functions of the form `f(rank, ...)` are run by every process of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accordion.base.messages import Decision, Report
from accordion_workers.records.contract import (
    DesiredState,
    JobSpec,
    Launch,
    Payload,
    Progress,
    Started,
)
from accordion_workers.training.boundaries import Outcome
from accordion_workers.training.checkpointing import restore_checkpoint
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import NoLink, WorkerContext
from accordion_workers.training.loop import train_job
from accordion_workers.training.train_state import TrainState, build_train_state

READING = 10**6
"""Generation of the group that only looks at what a job saved."""


@dataclass
class RecordingLink:
    """Rank 0's link: keeps what it was told, and gives the orders once a record of this kind and
    epoch was posted.
    """

    orders: DesiredState = field(default_factory=DesiredState)
    order_after: tuple[str, int] | None = None
    """Kind and epoch of a record; None gives the orders at the start."""
    posted: list[Payload] = field(default_factory=list)
    progresses: list[Progress] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    callback: Callable[[DesiredState], None] | None = None

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        if self.order_after is None and self.orders.version:
            callback(self.orders)
        self.callback = callback

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        self.post(started)

    def post(self, payload: Payload) -> None:
        self.posted.append(payload)
        if self.callback and (payload.kind, getattr(payload, "epoch", None)) == self.order_after:
            self.callback(self.orders)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)

    def log(self, text: str) -> None:
        self.lines.append(text)

    def decide(
        self, report: Report, proposal: Decision, controller_state: Mapping[str, Any]
    ) -> Decision:
        return proposal

    def flush(self, timeout_s: float) -> bool:
        return True

    def of(self, kind: str) -> list[Any]:
        return [payload for payload in self.posted if payload.kind == kind]


@dataclass
class Result:
    """What one rank brought back."""

    outcome: Outcome
    link: RecordingLink
    """Empty on all ranks but 0."""
    parameters: list[torch.Tensor]
    """Parameters and buffers of the newest checkpoint."""
    buffers: list[torch.Tensor]


def spec(
    task: str = "digits-mlp", options: Mapping[str, Any] | None = None, **parts: Any
) -> JobSpec:
    """Two epochs of a small task with an even division, unless the parts say otherwise."""
    training = {"epochs": 2, **parts.pop("training", {})}
    workers = {"balance": False, **parts.pop("workers", {})}
    options = {"hidden": 32} if task == "digits-mlp" and options is None else options or {}
    return JobSpec.model_validate(
        {
            "task": {"name": task, "options": options},
            "training": training,
            "workers": workers,
            **parts,
        }
    )


def synthetic(epochs: int = 2, **options: Any) -> JobSpec:
    """Four steps an epoch, unless the options say otherwise."""
    return spec("synthetic", {"samples": 256, "width": 16, **options}, training={"epochs": epochs})


def context(
    rank: int, storage: Path, job: JobSpec, link: RecordingLink, generation: int = 1
) -> WorkerContext:
    launch = Launch(
        job_id="job-1", attempt=1, workers=dist.get_world_size(), storage=str(storage), spec=job
    )
    return WorkerContext(
        launch=launch,
        generation=generation,
        rank=rank,
        world_size=dist.get_world_size(),
        device="cpu",
        link=link if rank == 0 else NoLink(lambda _: None),
    )


def run_job(
    rank: int,
    storage: Path,
    job: JobSpec,
    link: RecordingLink | None = None,
    generation: int = 1,
    clock: Clock | None = None,
) -> Result:
    """Train, and say what came of it."""
    link = link or RecordingLink()
    outcome = train_job(context(rank, storage, job, link, generation), clock)
    link.callback = None
    end = saved(rank, storage, job)
    buffers = [buffer.clone() for buffer in end.ddp.module.buffers()]
    return Result(outcome, link if rank == 0 else RecordingLink(), parameters(end), buffers)


def saved(rank: int, storage: Path, job: JobSpec) -> TrainState:
    """The job as its newest checkpoint holds it."""
    run = build_train_state(context(rank, storage, job, RecordingLink(), READING), Clock())
    restore_checkpoint(run)
    return run


def parameters(run: TrainState) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.ddp.module.parameters()]


def what_was_learned(result: Result) -> list[dict[str, Any]]:
    """All of each epoch but times and the bytes of the control traffic."""
    return [
        record.model_dump(exclude={"seconds_by_phase", "bytes"})
        for record in result.link.of("epoch")
    ]


def equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
