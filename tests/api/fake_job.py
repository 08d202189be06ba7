"""One job of the scripted cluster: what it is made of, and what it says of itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from accordion.base.messages import Decision, LayerInfo
from accordion.decide.controller import Controller
from accordion_workers.records.contract import (
    Bytes,
    DesiredState,
    EndRecord,
    EpochRecord,
    Launch,
    LogLine,
    Package,
    PackagesRecord,
    Progress,
    Record,
)
from accordion_workers.tasks import GUEST

LAYERS = (
    LayerInfo(name="fc1.weight", shape=(512, 64)),
    LayerInfo(name="fc2.weight", shape=(256, 512)),
    LayerInfo(name="fc3.weight", shape=(10, 256)),
)
SAMPLES = 1437
PARAMETERS = sum(math.prod(layer.shape) for layer in LAYERS)
_UNKNOWN_OF_GUESTS = ("steps_per_epoch", "epochs", "steps", "global_batch", "samples_per_s")
_WAITS = {"none": 0.02, "half": 0.01, "low": 0.004, "high": 0.0038}
"""Predicted waits of a job with the policy cost_aware."""
_PHASES = {
    "compute": 0.6,
    "communicate": 0.2,
    "optimize": 0.1,
    "evaluate": 0.05,
    "checkpoint": 0.05,
}


@dataclass(frozen=True)
class Saved:
    """The newest checkpoint."""

    epoch: int = 0
    tick: int = 0
    step: int = 0
    epoch_step: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """State of the controller."""


@dataclass
class FakeJob:
    """One job as its supervisor, actor and storage know it."""

    launch: Launch
    controller: Controller
    attempt: int
    generation: int = 0
    seq: int = 0
    epoch: int = 0
    tick: int = 0
    step: int = 0
    epoch_step: int = 0
    """With which the epoch began."""
    bytes: Bytes = field(default_factory=Bytes)
    phase: str = "starting"
    alive: bool = True
    says: str = ""
    """What its supervisor waits for."""
    starts_in: int = 0
    """Drains until training begins."""
    orders: DesiredState = field(default_factory=DesiredState)
    applied: tuple[Any, ...] = ()
    waiting: list[Record] = field(default_factory=list)
    journal: list[Record] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    saved: Saved = field(default_factory=lambda: Saved())
    world_size: int = 0
    """World size of the group that trains, or trained last."""
    cause: Literal["start", "resize", "recovery"] = "start"
    """Why the next group takes over."""
    missed: int = 0
    """Checkpoints that could not be saved, the newest ones."""
    end: EndRecord | None = None

    @property
    def target(self) -> int:
        """How many workers the job shall have."""
        return self.orders.size.target if self.orders.size else self.launch.workers

    @property
    def steps_per_epoch(self) -> int:
        return -(-SAMPLES // self.global_batch)

    @property
    def global_batch(self) -> int:
        return self.controller.decision.global_batch or self.launch.spec.training.global_batch


def epoch_record(job: FakeJob, decision: Decision, statistic: dict[str, float]) -> EpochRecord:
    done = 1 - math.exp(-(job.epoch + 1) / 4)
    return EpochRecord(
        epoch=job.epoch,
        step=job.step,
        world_size=job.world_size,
        loss=2.3 * (1 - done) + 0.05,
        metrics={"loss": 2.3 * (1 - done) + 0.08, **_measured(job.launch.spec.task.name, done)},
        lr=lr_of(job, job.epoch),
        global_batch=job.global_batch,
        local_steps=decision.local_steps,
        agreement=0.8 * math.exp(-job.epoch) if job.world_size > 1 else None,
        samples=SAMPLES,
        seconds_by_phase={name: 0.4 * part for name, part in _PHASES.items()},
        bytes=bytes_of(decision, job.steps_per_epoch, job.world_size),
        statistic_by_layer=statistic,
        regime_by_layer=dict(decision.regime_by_layer),
        level_by_layer={name: level.name for name, level in decision.level_by_layer.items()},
    )


def _measured(task: str, done: float) -> dict[str, float]:
    return (
        {"perplexity": 90.0 - 70 * done}
        if task.startswith("lm-")
        else {"accuracy": 0.1 + 0.87 * done}
    )


def packages_record(launch: Launch) -> PackagesRecord:
    """The packages of a job, resolved to the versions that its requirements name."""
    pairs = (text.partition("==") for text in launch.spec.pip)
    packages = tuple(Package(name=name, version=version or "1.0") for name, _, version in pairs)
    return PackagesRecord(packages=packages, size_bytes=43_200 * len(packages), seconds=2.0)


def progress_of(job: FakeJob, *, now: float) -> Progress:
    progress = _whole_progress(job, now=now)
    is_guest = job.launch.spec.task.name == GUEST
    return (
        progress.model_copy(update=dict.fromkeys(_UNKNOWN_OF_GUESTS, 0)) if is_guest else progress
    )


def _whole_progress(job: FakeJob, *, now: float) -> Progress:
    return Progress(
        attempt=job.attempt,
        generation=job.generation,
        time=now,
        epoch=job.epoch,
        step=job.step,
        steps_per_epoch=job.steps_per_epoch,
        epochs=job.launch.spec.training.epochs,
        world_size=job.world_size,
        loss=2.3 * math.exp(-job.step / 90) + 0.05,
        lr=lr_of(job, job.epoch),
        samples_per_s=SAMPLES / 0.4,
        bytes=job.bytes,
        compute_s_by_rank=tuple(0.01 * (1 + rank / 10) for rank in range(job.world_size)),
        micro_batches_by_rank=(2,) * job.world_size,
        step_s_by_phase={name: 0.02 * part for name, part in _PHASES.items()},
        link={"latency_s": 0.0002, "bytes_per_s": 12e6},
        exchange_wait_s=0.004,
        failed_checkpoints=job.missed,
        failed_checkpoints_in_a_row=job.missed,
        wait_s_by_level=_WAITS if job.launch.spec.policy.name == "cost_aware" else {},
        seconds_by_phase={
            name: 0.4 * part * job.step / job.steps_per_epoch for name, part in _PHASES.items()
        },
        global_batch=job.global_batch,
        steps=job.epoch_step + job.steps_per_epoch * (job.launch.spec.training.epochs - job.epoch),
    )


def lr_of(job: FakeJob, epoch: int) -> float:
    training = job.launch.spec.training
    drops = sum(at <= epoch for at in training.lr_decay.at)
    return training.optimizer.lr * training.lr_decay.factor**drops


def controller_of(launch: Launch) -> Controller:
    return Controller(launch.spec.config(), LAYERS)


def bytes_of(decision: Decision, steps: int, workers: int) -> Bytes:
    dense = 4 * PARAMETERS * steps
    by_method: Counter[str] = Counter()
    for layer in LAYERS:
        method = decision.level_by_layer[layer.name].method
        by_method[method] += _payload(layer, decision) * steps
    sent = {"payload": by_method.total(), "dense": dense, "fp16": dense // 2}

    def on_wire(size: int) -> int:
        return 2 * (workers - 1) * size // workers

    return Bytes(
        **sent,
        wire=on_wire(by_method.total()),
        dense_wire=on_wire(dense),
        payload_by_method=dict(by_method),
        wire_by_method={name: on_wire(size) for name, size in by_method.items()},
    )


def _payload(layer: LayerInfo, decision: Decision) -> int:
    level = decision.level_by_layer[layer.name]
    rank = level.options.get("rank")
    return 4 * int(rank) * sum(layer.shape) if isinstance(rank, int) else 4 * math.prod(layer.shape)


def used_cpus(
    cpus: Sequence[float], jobs: Mapping[str, FakeJob], placed: Mapping[str, Sequence[str]]
) -> list[float]:
    """CPUs that the processes of these jobs use, by node; those without a node are on the emptiest
    one.
    """
    used = [0.0] * len(cpus)
    for id_, job in jobs.items():
        if job.alive and job.phase != "ended":
            for node in placed.get(id_, ("",) * job.target):
                n = (
                    int(node[5:])
                    if node
                    else max(range(len(used)), key=lambda n: cpus[n] - used[n])
                )
                used[n] += job.launch.spec.workers.cpus
    return used
