"""A job's row and what is reported of it, for tests of the intake."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from accordion.base.messages import Ack, Decision
from accordion_service.domain.access import FULL_ACCESS
from accordion_service.store.engine.database import Database
from accordion_service.store.ingest.record_ingest import ingest_records
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.tables.models import AttemptRow, EventRow, JobRow
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.overrides import JobOverrides, RequestedOverride
from accordion_workers.records.contract import (
    AcksRecord,
    Bytes,
    CheckpointRecord,
    DecisionRecord,
    Drained,
    EpochRecord,
    FailureRecord,
    JobSpec,
    Payload,
    Progress,
    Record,
    ResizeRecord,
    Started,
)

RESIZE = ResizeRecord(cause="joined", old=2, new=3, step=9, message="missing processes are ready")
FAILURE = FailureRecord(cause="job", rank=0, message="ValueError: broken on purpose")
CHECKPOINT = CheckpointRecord(name="epoch-00001", epoch=1, step=9, size_bytes=1, seconds=0.1)


def started(cause: str = "start", **more: Any) -> Started:
    whole = {
        "world_size": 2,
        "epoch": 0,
        "step": 0,
        "resumed_from": None,
        "steps_per_epoch": 9,
        "layers": (),
    }
    return Started(parameters=1, cause=cause, **{**whole, **more})  # type: ignore[arg-type]


def epoch(number: int, step: int) -> EpochRecord:
    return EpochRecord(
        epoch=number,
        step=step,
        world_size=2,
        loss=1.0,
        metrics={"accuracy": 0.5},
        lr=0.1,
        global_batch=8,
        samples=8,
        seconds_by_phase={},
        bytes=Bytes(),
        regime_by_layer={},
        level_by_layer={},
    )


def decision(epoch: int, step: int) -> DecisionRecord:
    nothing: dict[str, Any] = {"regime_by_layer": {}, "level_by_layer": {}, "change_by_layer": {}}
    return DecisionRecord(
        decision=Decision(epoch=epoch, step=step, cause="hold", reason="", **nothing)
    )


def checkpoint(step: int) -> CheckpointRecord:
    return CHECKPOINT.model_copy(update={"name": f"step-{step}", "step": step})


def progress(attempt: int, generation: int, time: float = 9.0, **more: Any) -> Progress:
    whole = {
        "epoch": 0,
        "step": 1,
        "steps_per_epoch": 9,
        "epochs": 4,
        "world_size": 2,
        "loss": 1.0,
        "lr": 0.1,
    }
    rates = {
        "samples_per_s": 1.0,
        "bytes": Bytes(),
        "compute_s_by_rank": (),
        "seconds_by_phase": {},
    }
    return Progress(attempt=attempt, generation=generation, time=time, **{**whole, **rates, **more})


class Row:
    """One job's row at attempt 2, with what is reported of it."""

    def __init__(self, database: Database) -> None:
        self.database, self.jobs = database, JobReads(database)
        self.history, self.overrides = HistoryReads(database), OverrideReads(database)
        spec = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
        self.id = JobSubmission(database, lambda: 0.0, FULL_ACCESS).submit(spec, None)[0].id
        self.set(
            attempt=2,
            status="RUNNING",
            workers=2,
            world_size=2,
            cursor_attempt=1,
            reason="TRAINING",
            message="",
        )
        with database.write() as session:
            for number in (1, 2):
                session.add(
                    AttemptRow(
                        job_id=self.id, number=number, workers=2, reason="TRAINING", created_at=0.0
                    )
                )
        self._seq = 0

    def _open(self, session: Session) -> JobRow:
        return session.get_one(JobRow, self.id)

    def set(self, **columns: Any) -> None:
        with self.database.write() as session:
            row = self._open(session)
            for name, value in columns.items():
                setattr(row, name, value)

    def report(
        self, *payloads: Payload, attempt: int = 2, generation: int = 5, time: float = 1.0
    ) -> None:
        records = [
            self.record(payload, attempt=attempt, generation=generation, time=time)
            for payload in payloads
        ]
        self.take(Drained(records=tuple(records)))

    def record(
        self, payload: Payload, *, attempt: int = 2, generation: int = 5, time: float = 1.0
    ) -> Record:
        self._seq += 1
        return Record(
            attempt=attempt, generation=generation, seq=self._seq, time=time, payload=payload
        )

    def take(self, drained: Drained) -> None:
        with self.database.write() as session:
            ingest_records(session, [(self._open(session), drained)], now=2.0)

    def override(self, until: int) -> str:
        given: dict[str, Any] = {
            "target": "compression",
            "level": "low",
            "layers": ["*"],
            "apply_at": "next_step",
        }
        wish = RequestedOverride(**given, until=until, reason="")
        overrides = JobOverrides(self.database, lambda: 0.0, FULL_ACCESS)
        return overrides.add_override(self.id, wish, check=lambda _: None, idempotency=None)[0].id

    def confirm(self, made: str) -> AcksRecord:
        """All ranks confirm a plan with this override."""
        digest = "0" * 64
        acks = tuple(Ack(rank=rank, step=9, digest=digest) for rank in (0, 1))
        where: dict[str, Any] = {"epoch": 1, "step": 9, "world_size": 2}
        return AcksRecord(**where, digest=digest, override_ids=(made,), acks=acks)

    def override_state(self, override_id: str) -> str:
        found = self.overrides.get(self.id, override_id)
        assert found is not None
        return found.state

    @property
    def job(self) -> JobRow:
        found = self.jobs.get(self.id)
        assert found is not None
        return found

    @property
    def state(self) -> tuple[str, str, str]:
        return (self.job.status, self.job.reason, self.job.message)

    def events(self, kind: str) -> list[EventRow]:
        return [event for event in self.history.events(self.id, after=0) if event.type == kind]
