"""A guest run on rank 0: its records and progress to the service, people's overrides to its session.

Nothing here makes training wait for the service or ends it: what cannot be delivered stays in the
journal and is sent later, and what cannot be written is given up with a warning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from accordion.errors import OverrideError
from accordion.messages import Decision, Override, Report
from accordion.step_results import StepResult, Switch
from accordion_ray.connection import ServiceConnection
from accordion_ray.records import (
    Attached,
    EndedEpoch,
    Totals,
    is_last_failure,
    loss_of,
    numbers_of,
    started_record,
    totals_of,
)
from workers.clock import Clock
from workers.contract import (
    GUEST_ATTEMPT,
    EndReason,
    EndRecord,
    EpochRecord,
    FailureRecord,
    Orders,
    Payload,
    Progress,
    RejectedRecord,
)
from workers.journal import Journal, read_records
from workers.orders import Watch
from workers.outbox import Outbox
from workers.reporting import PROGRESS_EVERY_S, switch_records

REFRESH_S = 3.0
"""Pause between two registrations; the service takes a run that is silent for much longer for lost."""
END_FLUSH_S = 2.0
"""Ray Train ends the processes of a run about as long after the training function has ended."""

log = logging.getLogger(__name__)


class GuestRun:
    """Reports one worker group's session. The training thread calls `begin` and then the `record_` methods.

    Args:
        connection: the way to the service.
        journal: where this generation's records are kept.
        clock: time for records and phases.
        max_failures: restarts that Ray Train allows; -1 for any number.
    """

    def __init__(self, connection: ServiceConnection, journal: Journal, clock: Clock, *, max_failures: int) -> None:
        self._max_failures = max_failures
        self._connection = connection
        self._journal = journal
        self._clock = clock
        job_id = connection.guest.job_id
        self._outbox = Outbox(job_id, journal, connection)
        self._orders = Watch(job_id, connection)
        self._statistic: Mapping[str, float] | None = None
        self._overrides: tuple[Override, ...] | None = None
        """Last overrides heard of; None while there are none from the service."""
        self._progress: Progress | None = None
        self._progress_at = (0.0, 0)
        """Moment and step of the last progress."""
        self._loss: float | None = None
        self._is_broken = False
        """Whether records cannot be written any more."""
        self._seconds = dict.fromkeys(("compute", "communicate", "evaluate", "checkpoint", "decide"), 0.0)
        self._closed = threading.Event()

    def keep_statistic(self, report: Report, proposal: Decision) -> Decision:
        """Keep the statistic of a closed window for the epoch's record; the session's own decision holds."""
        if report.statistic_by_layer is not None:
            self._statistic = report.statistic_by_layer
        return proposal

    def begin(self, attached: Attached) -> None:
        """Register the run, and report the session from now on."""
        self._attached = attached
        self._lap, self._waited = self._clock.elapsed(), attached.session.communicate_s
        self._epoch_began = totals_of(attached.session, self._seconds)
        history = read_records(self._journal.storage)
        self._outbox.start()
        self._post(started_record(attached, history))
        self._orders.on_orders(self._obey)
        self._orders.start()
        threading.Thread(target=self._keep_registered, name="accordion-guest", daemon=True).start()

    def record_boundary(self, result: StepResult) -> None:
        """Record a step boundary: progress, and the switch to another decision."""
        self.count_seconds("compute")
        if result.switch is not None:
            self._record_switch(result.switch)
        self._update_progress()

    def record_epoch(self, ended: EndedEpoch, metrics: Mapping[str, Any]) -> None:
        """Record an epoch that has ended, with the script's metrics, and the switch that its end brought."""
        numbers, session = numbers_of(metrics), self._attached.session
        spent, self._epoch_began = ended.totals.since(self._epoch_began), ended.totals
        self._loss = loss_of(numbers)
        statistic, self._statistic = self._statistic, None
        self._post(
            EpochRecord(
                epoch=ended.epoch,
                step=ended.switch.decision.step,
                world_size=session.world_size,
                loss=self._loss,
                metrics=numbers,
                lr=ended.lr,
                global_batch=session.global_batch,
                samples=spent.steps * session.global_batch,
                skipped_steps=spent.skipped_steps,
                seconds_by_phase=dict(spent.seconds),
                bytes=spent.bytes,
                statistic_by_layer=None if statistic is None else numbers_of(statistic),
                regime_by_layer=dict(ended.decision.regime_by_layer),
                level_by_layer={layer: level.name for layer, level in ended.decision.level_by_layer.items()},
            )
        )
        self._record_switch(ended.switch)

    def read_totals(self) -> Totals:
        """Return what the session has counted so far."""
        return totals_of(self._attached.session, self._seconds)

    def record_end(self, failure: FailureRecord | None) -> bool:
        """Record how the training function ended; return whether the run has ended with it.

        After a failure that is up to Ray Train's restarts.
        """
        self._closed.set()
        end: EndRecord | None = EndRecord(status="SUCCEEDED", reason="COMPLETED")
        if failure is not None:
            is_last = is_last_failure(read_records(self._journal.storage), self._max_failures)
            self._post(failure.model_copy(update={"final": is_last}))
            end = _end_of(failure) if is_last else None
        if end is not None:
            self._post(end)
        if self._connection.is_registered:
            self._outbox.flush(END_FLUSH_S)
        return end is not None

    def close(self) -> None:
        """Stop reporting; what was not delivered stays in the journal."""
        self._closed.set()
        self._orders.close()
        self._outbox.close()

    def count_seconds(self, phase: str) -> None:
        """Count the time since the last call as this phase, but for what training waited for exchanges."""
        now, waited = self._clock.elapsed(), self._attached.session.communicate_s
        passed, communicated = now - self._lap, waited - self._waited
        self._lap, self._waited = now, waited
        self._seconds["communicate"] += communicated
        self._seconds[phase] += passed - communicated

    def _record_switch(self, switch: Switch) -> None:
        for record in switch_records(switch):
            self._post(record)

    def _post(self, payload: Payload) -> None:
        if self._is_broken:
            return
        try:
            self._outbox.put(payload)
        except OSError as error:
            self._is_broken = True
            log.warning(
                "the records of this guest run cannot be written to %s (%s); training goes on, but the "
                "service learns nothing more of it",
                self._journal.storage,
                error,
            )

    def _update_progress(self) -> None:
        session, now = self._attached.session, self._clock.elapsed()
        passed, steps = now - self._progress_at[0], session.steps - self._progress_at[1]
        if passed < PROGRESS_EVERY_S:
            return
        self._progress_at = (now, session.steps)
        is_first = self._progress is None
        self._progress = Progress(
            attempt=GUEST_ATTEMPT,
            generation=self._journal.generation,
            time=self._clock.now(),
            epoch=session.epoch,
            step=session.steps,
            steps_per_epoch=self._attached.steps_per_epoch or 0,
            epochs=0,
            world_size=session.world_size,
            loss=self._loss,
            lr=self._attached.rate(),
            samples_per_s=0.0 if is_first else steps * session.global_batch / passed,
            bytes=totals_of(session, {}).bytes,
            seconds_by_phase=dict(self._seconds),
            global_batch=session.global_batch,
        )
        self._outbox.put_progress(self._progress)

    def _keep_registered(self) -> None:
        while not self._connection.is_superseded:
            try:
                self._connection.refresh()
                self._repeat_progress()
            except Exception:
                # Whatever fails here, training goes on, and the next turn tries again.
                log.exception("the guest run could not be registered; it is tried again")
            if self._closed.wait(REFRESH_S):
                return

    def _repeat_progress(self) -> None:
        """Post the last progress with the present time: a script that evaluates makes no steps, but lives."""
        progress = self._progress
        if progress is not None and self._connection.is_registered:
            self._outbox.put_progress(progress.model_copy(update={"time": self._clock.now()}))

    def _obey(self, orders: Orders) -> None:
        """Put people's overrides in force; called by the thread that listens for them."""
        if orders.overrides != self._overrides:
            self._overrides = orders.overrides
            self._attached.session.override([one for one in orders.overrides if self._is_possible(one)])

    def _is_possible(self, override: Override) -> bool:
        try:
            self._attached.session.controller.check_override(override)
        except OverrideError as error:
            self._post(RejectedRecord(override_id=override.id, reason=str(error)))
            return False
        return True


def _end_of(failure: FailureRecord) -> EndRecord:
    reason: EndReason = "TASK_RAISED" if failure.cause == "job" else "TOO_MANY_FAILURES"
    return EndRecord(status="FAILED", reason=reason, message=failure.message)
