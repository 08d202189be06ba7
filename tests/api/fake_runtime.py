"""A scripted cluster: whole job lives in milliseconds, with the real controller deciding.

Every `drain` of a job moves it on by one tick (`ticks_per_epoch` of them make an epoch), so a
scheduler whose turns are called by hand runs a job as fast as it can look, and one that looks every
quarter of a second shows a live run. Faults are methods: `lose`, `break_group`, `forget`, and the
sets `mute`, `stuck` and the flag `down`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from accordion.base.messages import Ack, Decision, Report, plan_digest
from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.protocol import Node, SupervisorState
from accordion_workers.hub.accordion_actor import DRAIN_LIMIT, LOG_LIMIT_BYTES
from accordion_workers.hub.bounded_drain import BoundedDrain
from accordion_workers.records.contract import (
    AcksRecord,
    Bytes,
    CheckpointRecord,
    Cursor,
    DecisionRecord,
    DesiredState,
    Drained,
    EndRecord,
    FailureRecord,
    Launch,
    LogLine,
    PausedRecord,
    Payload,
    Record,
    RejectedRecord,
    ResizeRecord,
    Started,
    StorageUse,
)
from tests.api.fake_autoscaler import FakeAutoscaler
from tests.api.fake_guests import FakeGuests
from tests.api.fake_job import (
    LAYERS,
    PARAMETERS,
    FakeJob,
    Saved,
    bytes_of,
    controller_of,
    epoch_record,
    lr_of,
    packages_record,
    progress_of,
    used_cpus,
)
from tests.api.fake_plans import FakePlans


class FakeRuntime(FakePlans, FakeGuests, FakeAutoscaler):
    """Implements `accordion_service.runtime.protocol.Runtime`; any thread may call it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        cpus: Sequence[float] = (4.0,),
        ticks_per_epoch: int = 1,
    ) -> None:
        FakePlans.__init__(self)
        FakeGuests.__init__(self, clock)
        FakeAutoscaler.__init__(self)
        self.down = False
        """The cluster does not respond."""
        self.mute: set[int] = set()
        """Ranks that do not acknowledge."""
        self.draining: set[int] = set()
        """Nodes that are about to go, by their place in `cpus`, and those that are gone."""
        self.dead: set[int] = set()
        self.repeats = False
        """Drains send all records again, whatever was confirmed."""
        self.slow_start = 0
        """Drains between a start and its first step."""
        self.ahead_s = 0.0
        """Seconds by which the workers' clock is ahead of the service's."""
        self.started: list[tuple[str, int]] = []
        """(job, attempt) of every start that made a supervisor."""
        self.removed: list[str] = []
        self.emptied: list[tuple[str, str, str | None]] = []
        self.checkpoint_files: dict[str, dict[str, bool]] = {}
        """Job, directory and URL of every removal of files."""
        self.read_only = False
        """Files cannot be removed."""
        self.others: dict[str, int] = {}
        """Supervisors of other installations, by id."""
        self.batches: list[list[str]] = []
        """Jobs that were to be drained in one call, call by call."""
        self.drain_limit = DRAIN_LIMIT
        """Records of an answer from which on it leaves out the other jobs."""
        self._bounded = BoundedDrain(
            lambda id_, cursor: self.add_sign_of_life(id_, self.drain(id_, cursor))
        )
        self.placed: dict[str, tuple[str, ...]] = {}
        """Nodes of worker processes by job id, for tests that set them."""
        self.avoided: dict[str, tuple[str, ...]] = {}
        """Nodes on which worker processes could not start, by job id."""
        self.foreign_cpus: dict[int, float] = {}
        """CPUs that programs of others use, by the node's place in `cpus`."""
        self.lag_s = 0.0
        """How long CPUs count as used after a process has ended."""
        self._used: list[tuple[float, list[float]]] = []
        self.claimed: tuple[str, float] = ("", 0.0)
        self.cpus = list(cpus)
        self._monotonic = monotonic
        self.ticks_per_epoch = ticks_per_epoch
        self._lock = threading.RLock()

    def nodes(self) -> list[Node]:
        self._answer()
        return [
            Node(
                id=f"node-{n}",
                address=f"10.0.0.{n + 1}",
                alive=n not in self.dead,
                cpus=cpus,
                gpus=0.0,
                memory_bytes=8 << 30,
                draining=n in self.draining,
                cpus_free=max(0.0, cpus - used - self.foreign_cpus.get(n, 0.0)),
                gpus_free=0.0,
            )
            for n, (cpus, used) in enumerate(zip(self.cpus, self._used_cpus(), strict=True))
        ]

    def _used_cpus(self) -> list[float]:
        """CPUs that Ray counts as used by our processes, by node."""
        now, used = self._monotonic(), used_cpus(self.cpus, dict(self.jobs), self.placed)
        self._used = [(at, old) for at, old in self._used if now - at <= self.lag_s] + [(now, used)]
        return [max(old[n] for _, old in self._used if n < len(old)) for n in range(len(self.cpus))]

    def supervisors(self) -> list[SupervisorState]:
        self._answer()
        with self._lock:
            return [
                SupervisorState(
                    job_id=id_,
                    attempt=job.attempt,
                    phase=job.phase,  # type: ignore[arg-type]
                    message=job.says,
                    placed=self.placed.get(id_),
                    avoided=self.avoided.get(id_, ()),
                )
                for id_, job in self.jobs.items()
                if job.alive and id_ not in self.enlisted
            ]

    def count_foreign_supervisors(self) -> dict[str, int]:
        return dict(self.others)

    def claim(self, scheduler: str, *, last_s: float) -> str:
        self._answer()
        if scheduler == self.claimed[0] or self._monotonic() >= self.claimed[1]:
            self.claimed = (scheduler, self._monotonic() + last_s)
        return self.claimed[0]

    def start(self, launch: Launch) -> None:
        self._answer()
        with self._lock:
            old = self.jobs.get(launch.job_id)
            if old is not None and old.alive:
                return
            self.started.append((launch.job_id, launch.attempt))
            Path(launch.storage).mkdir(parents=True, exist_ok=True)
            job = FakeJob(
                launch=launch,
                controller=controller_of(launch),
                attempt=launch.attempt,
                starts_in=self.slow_start,
            )
            if old is not None:
                job.generation, job.saved, job.journal = old.generation, old.saved, old.journal
                job.end = old.end if old.attempt > launch.retried_attempt else None
                job.waiting, job.bytes = old.waiting, old.bytes
            self.jobs[launch.job_id] = job

    def remove(self, job_id: str) -> None:
        self._answer()
        with self._lock:
            self.removed.append(job_id)
            if job_id in self.jobs:
                self.jobs[job_id].alive = False

    def send_orders(self, job_id: str, orders: DesiredState) -> bool:
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
            progress = (
                progress_of(job, now=self.report_time(job_id)) if job.phase == "running" else None
            )
            return Drained(
                records=tuple(records),
                progress=progress,
                logs=tuple(logs),
                orders_version=job.orders.version,
            )

    def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        self._answer()
        self.batches.append(sorted(cursors))
        return self._bounded.drain_many(
            cursors, max_records=self.drain_limit, max_log_bytes=LOG_LIMIT_BYTES
        )

    def read_outcome(
        self, job_id: str, storage: str, *, retried_attempt: int = 0
    ) -> EndRecord | None:
        self._answer()
        job = self.jobs.get(job_id)
        return job.end if job and job.attempt > retried_attempt else None

    def remove_files(self, job_id: str, storage: str, url: str | None) -> None:
        if self.read_only:
            raise PermissionError(13, "Permission denied")
        self.emptied.append((job_id, storage, url))

    def list_checkpoints(self, job_id: str, storage: str, url: str | None) -> dict[str, bool]:
        if self.read_only:
            raise PermissionError(13, "Permission denied")
        return dict(self.checkpoint_files.get(job_id, {}))

    def remove_checkpoints(
        self, job_id: str, storage: str, url: str | None, *, names: Collection[str]
    ) -> None:
        for name in names:
            del self.checkpoint_files[job_id][name]

    def history(self, job_id: str, storage: str, *, retried_attempt: int = 0) -> Drained:
        self._answer()
        job = self.jobs.get(job_id)
        return Drained(records=tuple(job.journal) if job else ())

    def run_to_its_end(self, job_id: str) -> None:
        """Let all remaining events happen at once, without a drain in between."""
        job = self.jobs[job_id]
        with self._lock:
            while job.end is None:
                self._move(job)

    def lose(self, job_id: str) -> None:
        """The supervisor and its workers vanish with their machines; checkpoints and
        journal stay.
        """
        with self._lock:
            self.jobs[job_id].alive = False

    def report(self, job_id: str, payload: Payload) -> None:
        """One of the job's processes reports this."""
        with self._lock:
            self._post(self.jobs[job_id], payload)

    def break_group(self, job_id: str, cause: str = "infrastructure") -> None:
        """The worker group dies; the supervisor starts another one from the newest checkpoint."""
        with self._lock:
            job = self.jobs[job_id]
            message = (
                "a worker process ended"
                if cause == "infrastructure"
                else "ValueError: broken on purpose"
            )
            self._post(
                job,
                FailureRecord(cause=cause, rank=1, epoch=job.epoch, step=job.step, message=message),
            )  # type: ignore[arg-type]
            job.phase, job.starts_in, job.cause = "starting", 1, "recovery"

    def fail(self, job_id: str, message: str) -> None:
        """The job's task raises, and the job ends."""
        with self._lock:
            end = EndRecord(status="FAILED", reason="TASK_RAISED", message=message)
            self.finish(self.jobs[job_id], end)

    def forget(self, job_id: str) -> None:
        """The Accordion actor dies: orders are gone, records come again from the journal."""
        with self._lock:
            job = self.jobs[job_id]
            job.orders = DesiredState()
            job.waiting = list(job.journal)

    def _answer(self) -> None:
        if self.down:
            raise RuntimeUnavailable("the Ray cluster does not respond; is it running?")

    def _move(self, job: FakeJob) -> None:
        if job.phase == "ended" or job.launch.job_id in self.stuck:
            return
        if job.phase == "starting":
            job.starts_in -= 1
            if job.starts_in < 0:
                self._begin(job)
            return
        if job.orders.stop is not None:
            self._stop(job)
            return
        if job.target != job.world_size:
            self._resize(job)
            return
        self._obey(job)
        job.tick += 1
        job.step = max(
            job.step, job.epoch_step + job.steps_per_epoch * job.tick // self.ticks_per_epoch
        )
        self._spend(job)
        if not self._breaks(job) and job.tick == self.ticks_per_epoch:
            self._end_epoch(job)

    def _stop(self, job: FakeJob) -> None:
        self._checkpoint(job)
        if job.orders.stop == "pause":
            self._post(job, PausedRecord(step=job.step))
            job.phase = "ended"
            return
        end = EndRecord(
            status="CANCELLED", reason="CANCELLED_BY_USER", message="cancelled by a user"
        )
        self.finish(job, end)

    def _resize(self, job: FakeJob) -> None:
        """Save at a step boundary; the next group continues from there."""
        sizes = {"old": job.world_size, "new": job.target}
        message = f"the group changes from {job.world_size} to {job.target} workers: as allocated"
        self._post(job, ResizeRecord(cause="ordered", **sizes, step=job.step, message=message))
        self._checkpoint(job)
        job.phase, job.starts_in, job.cause = "starting", 0, "resize"

    def _begin(self, job: FakeJob) -> None:
        before, reached, saved = job.world_size, job.step, job.saved
        job.generation, job.seq, job.phase = job.generation + 1, 0, "running"
        job.epoch, job.tick, job.step, job.epoch_step = (
            saved.epoch,
            saved.tick,
            saved.step,
            saved.epoch_step,
        )
        job.world_size, job.applied = job.target, ()
        job.controller = controller_of(job.launch)
        if saved.state:
            job.controller.load_state_dict(saved.state)
        if job.launch.spec.pip and not job.journal:
            self._post(job, packages_record(job.launch))
        is_first, size = job.cause == "start", job.world_size
        facts = {
            "layers": LAYERS,
            "parameters": PARAMETERS,
            "cause": job.cause,
            "previous_world_size": before,
        }
        self._post(
            job,
            Started(
                world_size=size,
                epoch=job.epoch,
                step=job.step,
                resumed_from=f"epoch-{job.epoch:05d}" if saved.state else None,
                steps_per_epoch=job.steps_per_epoch,
                **facts,
                seconds_lost=0.0 if is_first else 0.8,
                steps_rolled_back=0 if is_first else reached - job.step,
                storage=StorageUse(place=job.launch.storage, workers=size, hosts=size),
                engine=(
                    None if job.launch.job_id in self.enlisted else job.launch.spec.workers.engine
                ),
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
        digest = plan_digest(decision.level_by_layer, decision.global_batch)
        ranks = [rank for rank in range(job.world_size) if rank not in self.mute]
        self._post(job, DecisionRecord(decision=decision))
        self._post(
            job,
            AcksRecord(
                epoch=decision.epoch,
                step=decision.step,
                world_size=job.world_size,
                digest=digest,
                override_ids=decision.override_ids,
                acks=tuple(Ack(rank=rank, step=decision.step, digest=digest) for rank in ranks),
            ),
        )

    def _breaks(self, job: FakeJob) -> bool:
        options = job.launch.spec.task.options
        if 0 <= options.get("raise_at_step", -1) <= job.step:
            message = (
                f"RuntimeError: raised on purpose in step {options['raise_at_step']} of epoch"
                f" {job.epoch}"
            )
            where = {"rank": 0, "epoch": job.epoch, "step": job.step}
            self._post(job, FailureRecord(cause="job", message=message, final=True, **where))
            self._log(job, f"Traceback (most recent call last): {message}")
            self.finish(job, EndRecord(status="FAILED", reason="TASK_RAISED", message=message))
        elif 0 <= options.get("nan_at_step", -1) <= job.step:
            message = (
                f"the loss is not finite since step {options['nan_at_step']}; lower the learning"
                " rate"
            )
            self.finish(job, EndRecord(status="FAILED", reason="LOSS_NOT_FINITE", message=message))
        return job.end is not None

    def _end_epoch(self, job: FakeJob) -> None:
        decision = job.controller.decision
        statistic = {
            layer.name: 3.0 * 0.6**job.epoch + 0.1 * (n + 1) for n, layer in enumerate(LAYERS)
        }
        self._post(job, epoch_record(job, decision, statistic))
        self._log(job, f"epoch {job.epoch} ended")
        lr, next_lr = (lr_of(job, epoch) for epoch in (job.epoch, job.epoch + 1))
        report = Report(
            epoch=job.epoch,
            step=job.step,
            epoch_end=True,
            world_size=job.world_size,
            global_batch=job.global_batch,
            lr=lr,
            next_lr=next_lr,
            window_steps=job.steps_per_epoch,
            statistic_by_layer=statistic,
        )
        decision = job.controller.decide(report)
        job.epoch, job.tick, job.epoch_step = job.epoch + 1, 0, job.step
        if job.epoch < job.launch.spec.training.epochs:
            self._switch(job, decision)
        self._checkpoint(job)
        if job.epoch == job.launch.spec.training.epochs:
            self.finish(job, EndRecord(status="SUCCEEDED", reason="COMPLETED"))

    def _checkpoint(self, job: FakeJob) -> None:
        state = json.loads(json.dumps(job.controller.state_dict()))
        job.saved = Saved(
            epoch=job.epoch, tick=job.tick, step=job.step, epoch_step=job.epoch_step, state=state
        )
        objective = None if job.launch.spec.objective is None or job.tick else -float(job.epoch)
        where = {"name": f"epoch-{job.epoch:05d}", "epoch": job.epoch, "step": job.step}
        spent = {"size_bytes": 1 << 20, "seconds": 0.02, "blocked_s": 0.005}
        self._post(job, CheckpointRecord(**where, objective=objective, **spent))

    def finish(self, job: FakeJob, end: EndRecord) -> None:
        self._post(job, end)
        job.end, job.phase = end, "ended"

    def _spend(self, job: FakeJob) -> None:
        steps = job.steps_per_epoch // self.ticks_per_epoch
        more = bytes_of(job.controller.decision, steps, job.world_size)
        job.bytes = Bytes.add_up([job.bytes, more])

    def _post(self, job: FakeJob, payload: Payload) -> None:
        place = {"attempt": job.attempt, "generation": job.generation, "seq": job.seq}
        record = Record(**place, time=self._clock() + self.ahead_s, payload=payload)
        job.seq += 1
        job.waiting.append(record)
        job.journal.append(record)

    def _log(self, job: FakeJob, text: str) -> None:
        line = LogLine(attempt=job.attempt, rank=0, time=self._clock(), text=text)
        job.logs.extend([line.model_copy(update={"rank": None}), line])
