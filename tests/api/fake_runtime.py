"""A scripted cluster: whole job lives in milliseconds, with the real controller deciding.

Every `drain` of a job moves it on by one tick (`ticks_per_epoch` of them make an epoch), so a scheduler whose turns are
called by hand runs a job as fast as it can look, and one that looks every quarter of a second shows a live run.
Faults are methods: `lose`, `break_group`, `forget`, and the sets `mute`, `stuck` and the flag `down`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from accordion.controller import Controller
from accordion.messages import Ack, Decision, LayerInfo, Report, plan_digest
from service.errors import RuntimeUnavailable
from service.runtime.base import Node, SupervisorState
from workers.contract import (
    AcksRecord,
    Bytes,
    CheckpointRecord,
    Cursor,
    DecisionRecord,
    Drained,
    EndRecord,
    EpochRecord,
    FailureRecord,
    Launch,
    LogLine,
    Orders,
    Payload,
    Progress,
    Record,
    RejectedRecord,
    Started,
)

LAYERS = (
    LayerInfo(name="fc1.weight", shape=(512, 64)),
    LayerInfo(name="fc2.weight", shape=(256, 512)),
    LayerInfo(name="fc3.weight", shape=(10, 256)),
)
SAMPLES = 1437
PARAMETERS = sum(math.prod(layer.shape) for layer in LAYERS)
_PHASES = {"compute": 0.6, "communicate": 0.2, "optimize": 0.1, "evaluate": 0.05, "checkpoint": 0.05}


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
    bytes: Bytes = field(default_factory=Bytes)
    phase: str = "starting"
    alive: bool = True
    starts_in: int = 0
    """Drains until training begins."""
    orders: Orders = field(default_factory=Orders)
    applied: tuple[Any, ...] = ()
    waiting: list[Record] = field(default_factory=list)
    journal: list[Record] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    saved: tuple[int, int, dict[str, Any]] = (0, 0, {})
    """Epoch, step and controller state of the newest checkpoint."""
    end: EndRecord | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-SAMPLES // self.launch.spec.training.global_batch)


class FakeRuntime:
    """Implements `service.runtime.base.Runtime`; any thread may call it."""

    def __init__(self, *, clock: Callable[[], float], cpus: Sequence[float] = (4.0,), ticks_per_epoch: int = 1) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.down = False
        """The cluster does not answer."""
        self.mute: set[int] = set()
        """Ranks that do not acknowledge."""
        self.stuck: set[str] = set()
        """Jobs that do not react to orders to stop, and do not train."""
        self.repeats = False
        """Drains send all records again, whatever was confirmed."""
        self.slow_start = 0
        """Drains between a start and its first step."""
        self.started: list[tuple[str, int]] = []
        """(job, attempt) of every start that made a supervisor."""
        self.removed: list[str] = []
        self.cpus = list(cpus)
        self._clock = clock
        self._ticks = ticks_per_epoch
        self._lock = threading.RLock()

    def nodes(self) -> list[Node]:
        self._answer()
        return [
            Node(id=f"node-{n}", address=f"10.0.0.{n + 1}", alive=True, cpus=cpus, gpus=0.0, memory_bytes=8 << 30)
            for n, cpus in enumerate(self.cpus)
        ]

    def supervisors(self) -> list[SupervisorState]:
        self._answer()
        with self._lock:
            return [
                SupervisorState(job_id=id_, attempt=job.attempt, phase=job.phase)  # type: ignore[arg-type]
                for id_, job in self.jobs.items()
                if job.alive
            ]

    def start(self, launch: Launch) -> None:
        self._answer()
        with self._lock:
            old = self.jobs.get(launch.job_id)
            if old is not None and old.alive:
                return
            self.started.append((launch.job_id, launch.attempt))
            job = FakeJob(
                launch=launch, controller=_controller(launch), attempt=launch.attempt, starts_in=self.slow_start
            )
            if old is not None:
                job.generation, job.saved, job.journal, job.end = old.generation, old.saved, old.journal, old.end
                job.waiting, job.bytes = old.waiting, old.bytes
            self.jobs[launch.job_id] = job

    def remove(self, job_id: str) -> None:
        self._answer()
        with self._lock:
            self.removed.append(job_id)
            if job_id in self.jobs:
                self.jobs[job_id].alive = False

    def order(self, job_id: str, orders: Orders) -> bool:
        self._answer()
        with self._lock:
            job = self.jobs.get(job_id)
            if job is None or not job.alive or job.phase == "starting":
                return False
            if orders.version > job.orders.version:
                job.orders = orders
            return True

    def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        self._answer()
        with self._lock:
            job = self.jobs.get(job_id)
            if job is None or not job.alive:
                return Drained()
            self._move(job)
            least = (confirmed.attempt, confirmed.generation, confirmed.seq)
            job.waiting = [r for r in job.waiting if (r.attempt, r.generation, r.seq) > least]
            records = job.journal if self.repeats else job.waiting
            logs, job.logs = job.logs, []
            progress = self._progress(job) if job.phase == "running" else None
            return Drained(
                records=tuple(records), progress=progress, logs=tuple(logs), orders_version=job.orders.version
            )

    def outcome(self, job_id: str, storage: str) -> EndRecord | None:
        self._answer()
        job = self.jobs.get(job_id)
        return job.end if job else None

    def history(self, job_id: str, storage: str) -> Drained:
        self._answer()
        job = self.jobs.get(job_id)
        return Drained(records=tuple(job.journal) if job else ())

    def lose(self, job_id: str) -> None:
        """The supervisor and its workers vanish with their machines; checkpoints and journal stay."""
        with self._lock:
            self.jobs[job_id].alive = False

    def break_group(self, job_id: str, cause: str = "infrastructure") -> None:
        """The worker group dies; the supervisor starts another one from the newest checkpoint."""
        with self._lock:
            job = self.jobs[job_id]
            message = "a worker process ended" if cause == "infrastructure" else "ValueError: broken on purpose"
            self._post(job, FailureRecord(cause=cause, rank=1, epoch=job.epoch, step=job.step, message=message))  # type: ignore[arg-type]
            job.phase, job.starts_in = "starting", 1

    def forget(self, job_id: str) -> None:
        """The Accordion actor dies: orders are gone, records come again from the journal."""
        with self._lock:
            job = self.jobs[job_id]
            job.orders = Orders()
            job.waiting = list(job.journal)

    def _answer(self) -> None:
        if self.down:
            raise RuntimeUnavailable("the Ray cluster does not answer; is it running?")

    def _move(self, job: FakeJob) -> None:
        if job.phase == "ended" or job.launch.job_id in self.stuck:
            return
        if job.phase == "starting":
            job.starts_in -= 1
            if job.starts_in < 0:
                self._begin(job)
            return
        if job.orders.stop == "cancel":
            self._checkpoint(job)
            self._finish(
                job, EndRecord(status="CANCELLED", reason="CANCELLED_BY_USER", message="cancelled by a person")
            )
            return
        self._obey(job)
        job.tick += 1
        job.step = job.epoch * job.steps_per_epoch + job.steps_per_epoch * job.tick // self._ticks
        self._spend(job)
        if not self._breaks(job) and job.tick == self._ticks:
            self._end_epoch(job)

    def _begin(self, job: FakeJob) -> None:
        job.generation, job.seq, job.phase, job.tick = job.generation + 1, 0, "running", 0
        job.epoch, job.step, state = job.saved
        job.controller = _controller(job.launch)
        if state:
            job.controller.load_state_dict(state)
        job.applied = ()
        resumed = f"epoch-{job.epoch:05d}" if state else None
        self._post(
            job,
            Started(
                world_size=job.launch.workers,
                epoch=job.epoch,
                step=job.step,
                resumed_from=resumed,
                steps_per_epoch=job.steps_per_epoch,
                layers=LAYERS,
                parameters=PARAMETERS,
            ),
        )
        self._log(job, f"training from epoch {job.epoch}, step {job.step}")
        self._switch(job, job.controller.decision)

    def _obey(self, job: FakeJob) -> None:
        if job.orders.overrides == job.applied:
            return
        possible = []
        for override in job.orders.overrides:
            try:
                job.controller.check_override(override)
                possible.append(override)
            except ValueError as error:
                self._post(job, RejectedRecord(override_id=override.id, reason=str(error)))
        job.applied = job.orders.overrides
        self._switch(job, job.controller.override(possible, epoch=job.epoch, step=job.step))

    def _switch(self, job: FakeJob, decision: Decision) -> None:
        digest = plan_digest(decision.level_by_layer)
        ranks = [rank for rank in range(job.launch.workers) if rank not in self.mute]
        self._post(job, DecisionRecord(decision=decision))
        self._post(
            job,
            AcksRecord(
                epoch=decision.epoch,
                step=decision.step,
                world_size=job.launch.workers,
                digest=digest,
                override_ids=tuple(sorted(set(decision.override_by_layer.values()))),
                acks=tuple(Ack(rank=rank, step=decision.step, digest=digest) for rank in ranks),
            ),
        )

    def _breaks(self, job: FakeJob) -> bool:
        options = job.launch.spec.task.options
        if 0 <= options.get("raise_at_step", -1) <= job.step:
            message = f"RuntimeError: raised on purpose in step {options['raise_at_step']} of epoch {job.epoch}"
            self._post(job, FailureRecord(cause="job", rank=0, epoch=job.epoch, step=job.step, message=message))
            self._log(job, f"Traceback (most recent call last): {message}")
            self._finish(job, EndRecord(status="FAILED", reason="TASK_RAISED", message=message))
        elif 0 <= options.get("nan_at_step", -1) <= job.step:
            message = f"the loss is not finite since step {options['nan_at_step']}; lower the learning rate"
            self._finish(job, EndRecord(status="FAILED", reason="LOSS_NOT_FINITE", message=message))
        return job.end is not None

    def _end_epoch(self, job: FakeJob) -> None:
        decision = job.controller.decision
        statistic = {layer.name: 3.0 * 0.6**job.epoch + 0.1 * (n + 1) for n, layer in enumerate(LAYERS)}
        self._post(job, self._epoch_record(job, decision, statistic))
        self._log(job, f"epoch {job.epoch} ended")
        lr, next_lr = (self._lr(job, epoch) for epoch in (job.epoch, job.epoch + 1))
        report = Report(
            epoch=job.epoch,
            step=job.step,
            epoch_end=True,
            world_size=job.launch.workers,
            global_batch=job.launch.spec.training.global_batch,
            lr=lr,
            next_lr=next_lr,
            window_steps=job.steps_per_epoch,
            statistic_by_layer=statistic,
        )
        decision = job.controller.decide(report)
        job.epoch, job.tick = job.epoch + 1, 0
        if job.epoch < job.launch.spec.training.epochs:
            self._switch(job, decision)
        self._checkpoint(job)
        if job.epoch == job.launch.spec.training.epochs:
            self._finish(job, EndRecord(status="SUCCEEDED", reason="COMPLETED"))

    def _epoch_record(self, job: FakeJob, decision: Decision, statistic: dict[str, float]) -> EpochRecord:
        done = 1 - math.exp(-(job.epoch + 1) / 4)
        return EpochRecord(
            epoch=job.epoch,
            step=job.step,
            world_size=job.launch.workers,
            loss=2.3 * (1 - done) + 0.05,
            metrics={"loss": 2.3 * (1 - done) + 0.08, "accuracy": 0.1 + 0.87 * done},
            lr=self._lr(job, job.epoch),
            global_batch=job.launch.spec.training.global_batch,
            samples=SAMPLES,
            seconds_by_phase={name: 0.4 * part for name, part in _PHASES.items()},
            bytes=_bytes(decision, job.steps_per_epoch, job.launch.workers),
            statistic_by_layer=statistic,
            regime_by_layer=dict(decision.regime_by_layer),
            level_by_layer={name: level.name for name, level in decision.level_by_layer.items()},
        )

    def _checkpoint(self, job: FakeJob) -> None:
        job.saved = (job.epoch, job.step, json.loads(json.dumps(job.controller.state_dict())))
        name = f"epoch-{job.epoch:05d}"
        self._post(job, CheckpointRecord(name=name, epoch=job.epoch, step=job.step, size_bytes=1 << 20, seconds=0.02))

    def _finish(self, job: FakeJob, end: EndRecord) -> None:
        self._post(job, end)
        job.end, job.phase = end, "ended"

    def _spend(self, job: FakeJob) -> None:
        more = _bytes(job.controller.decision, job.steps_per_epoch // self._ticks, job.launch.workers)
        job.bytes = Bytes(**{name: getattr(job.bytes, name) + getattr(more, name) for name in Bytes.model_fields})

    def _progress(self, job: FakeJob) -> Progress:
        return Progress(
            attempt=job.attempt,
            generation=job.generation,
            time=self._clock(),
            epoch=min(job.epoch, job.launch.spec.training.epochs - 1),
            step=job.step,
            steps_per_epoch=job.steps_per_epoch,
            epochs=job.launch.spec.training.epochs,
            world_size=job.launch.workers,
            loss=2.3 * math.exp(-job.step / 90) + 0.05,
            lr=self._lr(job, job.epoch),
            samples_per_s=SAMPLES / 0.4,
            bytes=job.bytes,
            seconds_by_phase={name: 0.4 * part * job.step / job.steps_per_epoch for name, part in _PHASES.items()},
        )

    def _lr(self, job: FakeJob, epoch: int) -> float:
        training = job.launch.spec.training
        drops = sum(at <= epoch for at in training.lr_decay.at)
        return training.optimizer.lr * training.lr_decay.factor**drops

    def _post(self, job: FakeJob, payload: Payload) -> None:
        record = Record(
            attempt=job.attempt, generation=job.generation, seq=job.seq, time=self._clock(), payload=payload
        )
        job.seq += 1
        job.waiting.append(record)
        job.journal.append(record)

    def _log(self, job: FakeJob, text: str) -> None:
        lines = [LogLine(attempt=job.attempt, rank=rank, time=self._clock(), text=text) for rank in (None, 0)]
        job.logs.extend(lines)


def _controller(launch: Launch) -> Controller:
    return Controller(launch.spec.config(), LAYERS)


def _bytes(decision: Decision, steps: int, workers: int) -> Bytes:
    dense = 4 * PARAMETERS * steps
    payload = sum(_payload(layer, decision) for layer in LAYERS) * steps
    wire = int(payload * 2 * (workers - 1) / workers)
    return Bytes(payload=payload, wire=wire, dense=dense, fp16=dense // 2)


def _payload(layer: LayerInfo, decision: Decision) -> int:
    level = decision.level_by_layer[layer.name]
    rank = level.options.get("rank")
    return 4 * int(rank) * sum(layer.shape) if isinstance(rank, int) else 4 * math.prod(layer.shape)
