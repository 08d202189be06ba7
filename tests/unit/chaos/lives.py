"""Histories of jobs as a run of `make chaos` leaves them, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from accordion_service.schemas.jobs import EventView
from accordion_service.store.tables.models import EpochRow, EventRow, JobRow, OverrideRow
from tests.chaos.history import History
from tests.chaos.laws import find_violations
from tests.chaos.owners import OWNERS, PLANS, OwnedJob, Plan

EPOCHS = 6


class Life:
    """The rows of a job, written one after the other and a second apart."""

    def __init__(self, plan: Plan, number: int, *, begins_at: float = 1000.0) -> None:
        self.job = OwnedJob(
            number=number,
            owner=OWNERS[number % len(OWNERS)],
            plan=plan,
            epochs=EPOCHS,
            priority=40,
            act_after=1,
            id=f"job-{number}",
        )
        self.row = JobRow(id=self.job.id, created_at=begins_at, ended_at=None, message="")
        self.now, self.workers, self.desired = begins_at, 0, "RUN"
        self.events: list[EventRow] = []
        self.epochs: list[EpochRow] = []
        self.overrides: list[OverrideRow] = []

    def tell(self, kind: str, **data: Any) -> None:
        """Append an event."""
        self.now += 1
        seq = len(self.events) + 1
        self.events.append(
            EventRow(job_id=self.job.id, seq=seq, type=kind, time=self.now, data=data)
        )

    def become(self, status: str, reason: str = "TRAINING", **by: str) -> None:
        """Change the status."""
        self.row.status, self.row.reason = status, reason
        now = {"workers": self.workers, "desired": self.desired}
        self.tell("status", status=status, reason=reason, **now, **by)

    def start(self, workers: int = 1) -> None:
        """Leave the queue and train."""
        self.become("QUEUED", "SUBMITTED")
        self.workers = workers
        self.become("STARTING", "ADMITTED")
        self.become("RUNNING")

    def train(self, epochs: int, *, workers: int = 1, level: str = "high") -> None:
        """Finish so many epochs."""
        for number in range(len(self.epochs), len(self.epochs) + epochs):
            key = {"attempt": 1, "generation": 1, "epoch": number}
            self.tell("epoch", **key)
            record = {"world_size": workers, "samples": 9, "level_by_layer": {"fc": level}}
            row = EpochRow(job_id=self.job.id, **key, time=self.now, record=record)
            self.epochs.append(row)

    def order(self, desired: str, status: str) -> None:
        """The owner pauses or cancels the job."""
        self.desired = desired
        self.become(status, "REQUESTED", by=self.job.owner)

    def leave(self, status: str, reason: str = "COMPLETED") -> None:
        """Release all workers."""
        self.workers = 0
        self.become(status, reason)
        self.row.ended_at = self.now if status in {"SUCCEEDED", "CANCELLED"} else None

    def override(self, *, epoch: int | None, state: str = "EXPIRED") -> None:
        """The owner overrides the compression, which is applied in that epoch."""
        self.tell("override", by=self.job.owner)
        row = OverrideRow(job_id=self.job.id, epoch=epoch, state=state, message="the job ended")
        self.overrides.append(row)

    def resize(self) -> None:
        """The owner allows the job one worker."""
        self.tell("workers", what="allowed", by=self.job.owner)

    def publish(self) -> History:
        """Return the history after its watcher has received all of it."""
        self.row.progress, self.row.event_seq = {"epoch": len(self.epochs)}, len(self.events)
        self.job.seen = [
            EventView(
                seq=event.seq,
                type=event.type,
                time=datetime.fromtimestamp(event.time, UTC),
                data=event.data,
            )
            for event in self.events
        ]
        return History(
            row=self.row, events=self.events, epochs=self.epochs, overrides=self.overrides
        )


def finish(life: Life) -> None:
    life.become("QUEUED", "WAITING_FOR_QUOTA")
    life.start()
    life.train(2)
    life.leave("QUEUED", "PREEMPTED")
    life.start()
    life.train(EPOCHS - 2)
    life.leave("SUCCEEDED")


def cancel(life: Life) -> None:
    life.start()
    life.train(2)
    life.order("CANCEL", "STOPPING")
    life.leave("CANCELLED")


def pause(life: Life) -> None:
    life.start()
    life.train(2)
    life.order("PAUSE", "PAUSING")
    life.leave("PAUSED")


def pause_and_resume(life: Life) -> None:
    pause(life)
    life.order("RUN", "QUEUED")
    life.start()
    life.train(EPOCHS - 2)
    life.leave("SUCCEEDED")


def override(life: Life) -> None:
    life.start()
    life.train(2)
    life.override(epoch=2)
    life.train(EPOCHS - 2, level="low")
    life.leave("SUCCEEDED")


def resize(life: Life) -> None:
    life.start(workers=2)
    life.train(2, workers=2)
    life.resize()
    life.train(1, workers=2)
    life.train(EPOCHS - 3)
    life.leave("SUCCEEDED")


SOUND: Mapping[Plan, Callable[[Life], None]] = {
    "finish": finish,
    "cancel": cancel,
    "pause": pause,
    "pause and resume": pause_and_resume,
    "override": override,
    "resize": resize,
}


class Run:
    """One job of each plan; those that are not given lived as their owners wanted."""

    def __init__(self, **written: Callable[[Life], None]) -> None:
        self.lives = {plan: Life(plan, number) for number, plan in enumerate(PLANS)}
        for plan, life in self.lives.items():
            written.get(plan.replace(" ", "_"), SOUND[plan])(life)
        self.histories = {life.job.id: life.publish() for life in self.lives.values()}

    def add(self, life: Life) -> None:
        """Add another job."""
        self.lives[f"another {life.job.id}"] = life  # type: ignore[index]
        self.histories[life.job.id] = life.publish()

    def find_violations(self) -> list[str]:
        return find_violations([life.job for life in self.lives.values()], self.histories)
