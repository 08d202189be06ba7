"""Stores a running job's reports as rows and events: each record once, in order, in the cursor's
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import structlog
from sqlalchemy import ColumnElement, delete, select, tuple_
from sqlalchemy.orm import Session

from accordion.base.messages import Decision, to_json
from accordion_service.domain.jobs.ray_run import RayRun
from accordion_service.domain.jobs.status_table import LEAVING
from accordion_service.domain.jobs.statuses import Kind, Reason, Status
from accordion_service.domain.overrides import transitions
from accordion_service.domain.overrides.states import OverrideStatus, SwitchReport
from accordion_service.domain.performance.elasticity import (
    ElasticityStats,
    add_cost,
    count_recovery,
    count_resize,
)
from accordion_service.store.engine.events import append_event, load_newest_times
from accordion_service.store.engine.upserts import Upserts
from accordion_service.store.ingest import attempt_losses, guest_losses
from accordion_service.store.tables.models import (
    AttemptRow,
    CheckpointRow,
    DecisionRow,
    EpochRow,
    JobRow,
    LogChunkRow,
    OverrideRow,
)
from accordion_service.store.tables.stored_documents import (
    layer_names,
    stored_elasticity,
    stored_progress,
)
from accordion_service.store.tables.stored_spec import spec_value
from accordion_service.store.writes.nodes import record_node_failures
from accordion_service.store.writes.override_changes import (
    load_override_statuses,
    store_override_status,
)
from accordion_service.store.writes.status_changes import change_status
from accordion_workers.common.names import train_run_name
from accordion_workers.records.contract import (
    AcksRecord,
    CheckpointRecord,
    Cursor,
    DecisionRecord,
    Drained,
    EndRecord,
    EpochRecord,
    FailureRecord,
    LogLine,
    PackagesRecord,
    PausedRecord,
    Payload,
    Progress,
    Record,
    RejectedRecord,
    ResizeRecord,
    Started,
)

_MAX_TEXT = 2000
"""Characters of a message that a row keeps."""
_MAX_NUMBER = 2**31 - 1
"""Largest epoch and step that PostgreSQL has room for."""
_REASONS = {
    "ordered": Reason.RESIZE_ORDERED,
    "joined": Reason.WORKERS_JOINED,
    "leaving": Reason.WORKERS_LEAVING,
    "job": Reason.RETRYING,
    "infrastructure": Reason.WORKERS_LOST,
}
"""Reasons of worker changes, by the cause in the record."""

_log = structlog.get_logger()

JobReport = tuple[JobRow, Drained]
"""The row of a job, which is locked, and what the job reported."""


def cursor_of(job: JobRow) -> Cursor:
    """The newest record that the database holds."""
    return Cursor(attempt=job.cursor_attempt, generation=job.cursor_generation, seq=job.cursor_seq)


def has_new_data(job: JobRow, drained: Drained) -> bool:
    """Return whether a report changes a row; the newest progress is drained until a newer one
    follows.
    """
    if drained.records or drained.logs or drained.logs_dropped:
        return True
    return drained.progress is not None and _is_newer(drained.progress, stored_progress(job))


def ingest_records(session: Session, reports: Sequence[JobReport], *, now: float) -> None:
    """Store drained reports; records at or below the cursor change nothing.

    Since the cursor only grows, a row is only ever overwritten by a newer worker group's or a later
    record.
    """
    upserts = Upserts(session)
    load_newest_times(
        session, [job.id for job, drained in reports if drained.records or drained.logs]
    )
    for job, drained in reports:
        _ingest_report(_Intake(session, job, upserts), job, drained, now=now)
    upserts.write()


def _ingest_report(intake: _Intake, job: JobRow, drained: Drained, *, now: float) -> None:
    if job.status == Status.LOST:
        intake.end_silence(drained, now=now)
    # First: a job's last progress arrives with its end, after which none is stored.
    old = stored_progress(job)
    is_newer = drained.progress is not None and intake.take_progress(drained.progress, old)
    position = _cursor_position(job)
    for record in drained.records:
        if record_position(record) > position:
            intake.take_record(record, now=now)
            position = record_position(record)
    job.cursor_attempt, job.cursor_generation, job.cursor_seq = position
    # After the records: these are older, and so are their events.
    if drained.progress is not None and is_newer:
        intake.follow_progress(drained.progress, old, now=now)
    intake.take_logs(drained.logs, dropped=drained.logs_dropped, now=now)


def record_position(item: Record | Cursor) -> tuple[int, int, int]:
    """Sort key of records."""
    return (item.attempt, item.generation, item.seq)


def update_overrides(
    session: Session, job: JobRow, change: Callable[[OverrideStatus], OverrideStatus], *, now: float
) -> None:
    """Apply a state change to every override of the job."""
    for row, old in load_override_statuses(session, job).values():
        store_override_status(session, job, row=row, old=old, new=change(old), now=now)


class _Intake:
    """Stores one job's reports within one transaction."""

    def __init__(self, session: Session, job: JobRow, upserts: Upserts) -> None:
        self._session = session
        self._job = job
        self._progress_before = stored_progress(job)
        self._upserts = upserts
        self._takers: dict[type[Any], Callable[[Record, Any], None]] = {
            PackagesRecord: self._take_packages,
            Started: self._take_started,
            EpochRecord: self._take_epoch,
            DecisionRecord: self._take_decision,
            AcksRecord: self._take_acks,
            RejectedRecord: self._take_rejected,
            CheckpointRecord: self._take_checkpoint,
            ResizeRecord: self._take_resize,
            FailureRecord: self._take_failure,
            PausedRecord: self._take_end,
            EndRecord: self._take_end,
        }

    @cached_property
    def _requesters(self) -> dict[str, str | None]:
        """Users who requested the overrides of the job, by the ID of the override; none is added
        while the job's row is locked.
        """
        if self._job.override_number == 0:
            return {}
        query = select(OverrideRow.id, OverrideRow.requested_by)
        with self._session.no_autoflush:
            found = self._session.execute(query.where(OverrideRow.job_id == self._job.id))
            return {row.id: row.requested_by for row in found}

    def end_silence(self, drained: Drained, *, now: float) -> None:
        """Return a LOST guest run to RUNNING."""
        self._job.deadline = None
        if drained.progress is not None:
            self._job.world_size = drained.progress.world_size
        mark_training(self._session, self._job, now=now)

    def take_record(self, record: Record, *, now: float) -> None:
        """Store one record of any kind."""
        if not _has_room(record.payload):
            _log.error("record not stored: its numbers are too large", job_id=self._job.id)
            return
        if record.time > now:
            # A worker's clock may be ahead, but every record describes the past.
            record = record.model_copy(update={"time": now})
        self._takers[type(record.payload)](record, record.payload)

    def take_logs(self, lines: Iterable[LogLine], *, dropped: int, now: float) -> None:
        kept = [line.model_dump(mode="json") for line in lines]
        if not kept and not dropped:
            return
        size_bytes = len(json.dumps(kept))
        self._job.log_number += 1
        self._job.log_bytes += size_bytes
        chunk = {"number": self._job.log_number, "time": now, "size_bytes": size_bytes}
        self._upserts.add(
            LogChunkRow, {"job_id": self._job.id, **chunk, "lines": kept, "dropped": dropped}
        )
        data = {"number": self._job.log_number, "lines": len(kept), "dropped": dropped}
        append_event(self._session, self._job, "log", data=data, now=now)

    def take_progress(self, progress: Progress, old: dict[str, Any] | None) -> bool:
        """Store a progress that is newer than the old one; False if it is not."""
        if _group(progress) < _cursor_position(self._job)[:2] or not _is_newer(progress, old):
            return False
        self._job.progress = progress.model_dump(mode="json")
        return True

    def follow_progress(
        self, progress: Progress, old: dict[str, Any] | None, *, now: float
    ) -> None:
        """Update what a stored progress proves, unless a newer group has begun since."""
        if _group(progress) < _cursor_position(self._job)[:2]:
            return
        waits = self._job.reason in {Reason.WAITING_FOR_STORAGE, Reason.NO_STEPS}
        if waits and self._job.world_size:
            mark_training(self._session, self._job, now=now)
        if old is None or old["epoch"] != progress.epoch:
            self._update_overrides(lambda status: transitions.expire(status, progress.epoch), now)

    def _take_packages(self, record: Record, found: PackagesRecord) -> None:
        content = found.model_dump(mode="json", exclude={"kind"})
        self._job.packages = {**content, "resolved_at": record.time}
        self._append_event(record, "packages", content)

    def _take_started(self, record: Record, started: Started) -> None:
        self._job.layers = [to_json(layer) for layer in started.layers]
        self._job.started_at = self._job.started_at or record.time
        if started.storage is not None:
            self._job.storage = {**started.storage.model_dump(mode="json"), "seen_at": record.time}
        if self._job.kind == Kind.JOB:
            self._job.ray_run = _ray_run(self._job, record.attempt, started)
        started, cause = self._count_loss(record, started)
        self._delete_repeated_work(record, started)
        self._job.tally = _add_change(stored_elasticity(self._job), started, cause)
        attempt = self._session.get(AttemptRow, (self._job.id, record.attempt))
        if attempt is not None:
            attempt.generation, attempt.workers = record.generation, started.world_size
            attempt.started_at = attempt.started_at or record.time
            attempt.tally = _add_change(stored_elasticity(attempt), started, cause)
        if record.attempt == self._job.attempt:
            self._start_training(record, started)
        data = started.model_dump(mode="json", exclude={"kind", "layers"})
        self._append_event(record, "workers", {"what": "started", "why": cause, **data})
        self._update_overrides(
            lambda status: transitions.restart(status, started.epoch, started.step), record.time
        )

    def _count_loss(self, record: Record, started: Started) -> tuple[Started, str]:
        """Return the start with what it repeats as far as the service knows more than its workers,
        and why the group started.
        """
        session, job, now = self._session, self._job, record.time
        lost = attempt_losses.find_lost_attempt(session, job, record.attempt)
        cause = attempt_losses.find_cause(session, record, started, job=job, lost=lost)
        if lost is None:
            return guest_losses.count_loss(started, self._find_last_step(), now=now), cause
        last = guest_losses.find_newest_step(session, lost, self._list_progresses())
        again = attempt_losses.count_loss(started, lost, last, queued_at=job.queued_at, now=now)
        return again, cause

    def _find_last_step(self) -> guest_losses.ReportedStep | None:
        return guest_losses.find_last_step(self._session, self._job, self._list_progresses())

    def _list_progresses(self) -> list[dict[str, Any] | None]:
        """Return the last two progresses of the job; earlier records are in the database then."""
        self._upserts.write()
        return [self._progress_before, stored_progress(self._job)]

    def _start_training(self, record: Record, started: Started) -> None:
        self._job.world_size = started.world_size
        if self._job.status in LEAVING:
            return
        self._job.deadline = None
        message = _train_message(started)
        self._change_status(Status.RUNNING, Reason.TRAINING, message=message, now=record.time)
        attempt = self._session.get(AttemptRow, (self._job.id, record.attempt))
        if attempt is not None:
            attempt.reason, attempt.message = Reason.TRAINING.value, message

    def _delete_repeated_work(self, record: Record, started: Started) -> None:
        """Remove epochs, decisions and checkpoints of repeated work; their events remain."""
        self._upserts.write()
        repeated: dict[type[EpochRow | DecisionRow | CheckpointRow], ColumnElement[bool]] = {
            EpochRow: EpochRow.epoch >= started.epoch,
            DecisionRow: DecisionRow.step > started.step,
            CheckpointRow: CheckpointRow.step > started.step,
        }
        for table, condition in repeated.items():
            older = tuple_(table.attempt, table.generation) < (record.attempt, record.generation)
            self._session.execute(
                delete(table).where(table.job_id == self._job.id, condition, older)
            )

    def _take_epoch(self, record: Record, epoch: EpochRecord) -> None:
        content = epoch.model_dump(mode="json")
        row = {"epoch": epoch.epoch, "record": content, **_origin_columns(record)}
        self._upserts.add(EpochRow, {"job_id": self._job.id, **row})
        if epoch.metrics:
            self._job.metrics = dict(epoch.metrics)
        progress = stored_progress(self._job)
        if progress is not None and _is_before(progress, record, step=epoch.step):
            at_end = {
                "epoch": epoch.epoch + 1,
                "step": epoch.step,
                "loss": epoch.loss,
                "time": record.time,
            }
            self._job.progress = {**progress, **at_end}
        self._append_event(record, "epoch", content)
        self._update_overrides(
            lambda status: transitions.expire(status, epoch.epoch + 1), record.time
        )

    def _take_decision(self, record: Record, taken: DecisionRecord) -> None:
        where = {"epoch": taken.decision.epoch, "step": taken.decision.step}
        decision = taken.model_dump(mode="json")["decision"]
        row = {"decision": decision, **where, **_origin_columns(record)}
        self._upserts.add(DecisionRow, {"job_id": self._job.id, **row})
        data: dict[str, Any] = {"decision": decision}
        if taken.decision.override_ids:
            users = transitions.name_requesters(taken.decision, self._requesters)
            data |= {"user_by_override": users} if users else {}
        self._append_event(record, "decision", data)

    def _take_acks(self, record: Record, acks: AcksRecord) -> None:
        switched = SwitchReport(
            **{name: getattr(acks, name) for name in SwitchReport.__dataclass_fields__}
        )
        if not self._requesters:
            return
        found = load_override_statuses(self._session, self._job)
        known = [transitions.acknowledge(old, switched) for _, old in found.values()]
        for new in transitions.supersede(known, layer_names(self._job)):
            row, old = found[new.id]
            store_override_status(
                self._session, self._job, row=row, old=old, new=new, now=record.time
            )

    def _take_rejected(self, record: Record, rejected: RejectedRecord) -> None:
        found = load_override_statuses(self._session, self._job).get(rejected.override_id)
        if found is not None:
            row, old = found
            new = transitions.reject(old, rejected.reason[:_MAX_TEXT])
            store_override_status(
                self._session, self._job, row=row, old=old, new=new, now=record.time
            )

    def _take_checkpoint(self, record: Record, checkpoint: CheckpointRecord) -> None:
        content = checkpoint.model_dump(mode="json", exclude={"kind"})
        row = {**content, **_origin_columns(record)}
        self._upserts.add(CheckpointRow, {"job_id": self._job.id, **row})
        # Progress beyond the previous attempt ends a series of losses.
        self._job.lost_attempts = 0
        self._append_event(record, "checkpoint", content)

    def _take_resize(self, record: Record, resize: ResizeRecord) -> None:
        data = resize.model_dump(mode="json", exclude={"kind"})
        data["step"] = guest_losses.count_steps(resize.step, self._find_last_step())
        data = {"what": "resizing", **data, "world_size": self._job.world_size}
        self._append_event(record, "workers", data)
        if record.attempt == self._job.attempt and self._job.status in {
            Status.RUNNING,
            Status.RESIZING,
        }:
            reason, message = _REASONS[resize.cause], resize.message[:_MAX_TEXT]
            self._change_status(Status.RESIZING, reason, message=message, now=record.time)

    def _take_failure(self, record: Record, failure: FailureRecord) -> None:
        # The job waits for a storage that is full or unreachable; neither workers nor user code
        # failed.
        self._job.failures += not failure.is_storage
        data = failure.model_dump(mode="json", exclude={"kind"})
        data["step"] = guest_losses.count_steps(failure.step, self._find_last_step())
        self._append_event(record, "workers", {"what": "failed", **data, "world_size": 0})
        record_node_failures(self._session, self._job, record=record, failure=failure)
        if record.attempt != self._job.attempt:
            return
        self._job.world_size = 0
        if self._job.status not in LEAVING and not failure.final:
            message = f"the worker group ended: {failure.message[:_MAX_TEXT]}"
            self._change_status(
                Status.RECOVERING, _REASONS[failure.cause], message=message, now=record.time
            )

    def _change_status(self, status: Status, reason: Reason, *, message: str, now: float) -> None:
        change_status(self._session, self._job, status, reason=reason, message=message, now=now)

    def _take_end(self, record: Record, end: EndRecord | PausedRecord) -> None:
        """Ignore end records: `SchedulerWrites` stores the end after all earlier records."""

    def _append_event(self, record: Record, kind: str, data: dict[str, Any]) -> None:
        stamped = {"attempt": record.attempt, "generation": record.generation, **data}
        append_event(self._session, self._job, kind, data=stamped, now=record.time)

    def _update_overrides(
        self, change: Callable[[OverrideStatus], OverrideStatus], now: float
    ) -> None:
        if self._requesters:
            update_overrides(self._session, self._job, change, now=now)


def mark_training(session: Session, job: JobRow, *, now: float) -> None:
    """Show the job as training again, after it waited for storage, made no steps or was LOST."""
    attempt = session.get(AttemptRow, (job.id, job.attempt))
    message = attempt.message if attempt is not None else ""
    change_status(session, job, Status.RUNNING, reason=Reason.TRAINING, message=message, now=now)


def _ray_run(job: JobRow, attempt: int, started: Started) -> dict[str, Any]:
    """Return what runs the worker group in Ray; the record of a guest run names no engine."""
    name = spec_value(job, "name", "") or None
    train_run = train_run_name(name, job.id, attempt) if started.engine == "ray-train" else None
    return asdict(RayRun(engine=started.engine, train_run=train_run))


def _has_room(payload: Payload) -> bool:
    """Return whether the columns of a record's row have room for its place in training."""
    if isinstance(payload, EpochRecord):
        return payload.epoch <= _MAX_NUMBER
    place = payload.decision if isinstance(payload, DecisionRecord) else payload
    if not isinstance(place, Decision | AcksRecord | CheckpointRecord):
        return True
    return max(place.epoch, place.step) <= _MAX_NUMBER


def _group(progress: Progress) -> tuple[int, int]:
    return (progress.attempt, progress.generation)


def _is_before(progress: dict[str, Any], record: Record, *, step: int) -> bool:
    # A newer group may train this step again.
    is_newer = (progress["attempt"], progress["generation"]) > (record.attempt, record.generation)
    return not is_newer and progress["step"] <= step


def _cursor_position(job: JobRow) -> tuple[int, int, int]:
    return (job.cursor_attempt, job.cursor_generation, job.cursor_seq)


def _is_newer(progress: Progress, old: dict[str, Any] | None) -> bool:
    if old is None:
        return True
    # Not ordered by time: a worker's clock may be set back. An epoch's end and its last step have
    # the same step.
    places = ("attempt", "generation", "step", "epoch")
    new_place, old_place = (
        tuple(getattr(progress, name) for name in places),
        tuple(old[name] for name in places),
    )
    return new_place > old_place or (new_place == old_place and progress.time != old["time"])


def _add_change(kept: ElasticityStats, started: Started, cause: str) -> dict[str, Any]:
    """Add the cost of this change of group; `cause` is `start` if nothing changed."""
    tally = add_cost(kept, started.seconds_lost, started.steps_rolled_back)
    if cause != "start":
        tally = (count_resize if started.cause == "resize" else count_recovery)(tally, cause)
    return asdict(tally)


def _train_message(started: Started) -> str:
    """Describe the size of the group, its checkpoint, and the cost of the change."""
    parts = [f"{_format_workers(started.world_size)} train{'s' if started.world_size == 1 else ''}"]
    if started.cause != "start":
        done = {"resize": "resized", "recovery": "recovered"}[started.cause]
        parts.append(
            f"{done} from {started.previous_world_size} with {started.seconds_lost:.1f} s lost"
        )
    if started.from_memory:
        parts.append("from the newest round that its workers remember")
    elif started.resumed_from:
        parts.append(f"from checkpoint {started.resumed_from}")
    if started.steps_rolled_back:
        parts.append(f"{started.steps_rolled_back} steps trained again")
    return ", ".join(parts)


def _format_workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _origin_columns(record: Record) -> dict[str, Any]:
    return {"attempt": record.attempt, "generation": record.generation, "time": record.time}
