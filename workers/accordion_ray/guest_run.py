"""A guest run on rank 0: sends records and progress to the service, and applies its overrides.

Training never waits for the service and never ends because of it: undelivered records stay in the
journal and are sent later, and any failure here only logs a message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from accordion.base.errors import OverrideError
from accordion.base.messages import Decision, Override, Report
from accordion.hook.level_costs import sum_waits
from accordion.session.optimizer_steps import list_optimizers
from accordion.session.step_results import StepResult, Switch
from accordion_ray.failures import build_change_record
from accordion_ray.identity import GuestState
from accordion_ray.records import (
    Attached,
    EndedEpoch,
    Totals,
    build_started_record,
    find_loss,
    is_last_failure,
    keep_finite_numbers,
    read_totals,
)
from accordion_ray.service_connection import ServiceConnection
from accordion_workers.hub.journal import Journal
from accordion_workers.hub.order_watcher import OrderWatcher
from accordion_workers.hub.record_sender import RecordSender
from accordion_workers.records.contract import (
    GUEST_ATTEMPT,
    DesiredState,
    EndReason,
    EndRecord,
    EpochRecord,
    FailureRecord,
    Payload,
    Progress,
    RejectedRecord,
)
from accordion_workers.training.clock import Clock, Phases
from accordion_workers.training.load_timing import time_loading
from accordion_workers.training.reports import PROGRESS_EVERY_S
from accordion_workers.training.step_times import StepTimes
from accordion_workers.training.switches import switch_records

REFRESH_S = 3.0
"""Seconds between registrations; after a much longer silence the service marks the run as lost."""
END_FLUSH_S = 2.0
"""Seconds to deliver records at the end; Ray Train ends the processes about as long afterwards."""
RECORD_LIMIT = 1000
"""Number of undelivered records kept; those of a large model take about 10 KB each."""

logger = logging.getLogger(__name__)


class _Boundary(NamedTuple):
    """The newest step boundary."""

    time: float
    step: int
    epoch: int


class GuestRun:
    """Reports one worker group's session. The training thread calls `begin` and then the `record_`
    methods.

    Args:
        connection: the connection to the service.
        journal: where this generation's records are kept.
        clock: time for records and phases.
        max_failures: restarts that Ray Train allows, as in its `FailureConfig`: -1 for any number.
        before: state left by the previous worker groups.
        save: saves the state for the next worker group; may raise OSError.
    """

    def __init__(
        self,
        connection: ServiceConnection,
        journal: Journal,
        clock: Clock,
        *,
        max_failures: int,
        before: GuestState,
        save: Callable[[GuestState], None],
    ) -> None:
        self._max_failures = max_failures
        self._connection = connection
        self._journal = journal
        self._clock = clock
        job_id = connection.guest.job_id
        self._sender = RecordSender(job_id, journal, connection, limit=RECORD_LIMIT)
        self._orders = OrderWatcher(job_id, connection)
        self._state = self._saved = before
        """State for the next worker group, and the part of it that is saved."""
        self._save = save
        self._changing, self._saving = threading.Lock(), threading.Lock()
        self._statistic: Mapping[str, float] | None = None
        self._agreement: float | None = None
        self._wait_s_by_level: Mapping[str, float] = {}
        self._exchange_wait_s: float | None = None
        self._overrides: tuple[Override, ...] | None = None
        """Overrides in the last orders; None before the first orders."""
        self._progress: Progress | None = None
        self._progress_at = (0.0, 0)
        """Moment and step of the last progress."""
        self._boundary: _Boundary | None = None
        self._loss: float | None = None
        self._is_broken = False
        """Whether records can no longer be written."""
        self._failed: set[str] = set()
        """Operations that have failed, each logged once."""
        self._step_times = StepTimes()
        self._closed = threading.Event()

    def keep_measurements(self, report: Report, proposal: Decision) -> Decision:
        """Keep what a report measured for later records; return the proposal."""
        if report.statistic_by_layer is not None:
            self._statistic, self._agreement = report.statistic_by_layer, report.agreement
        self._wait_s_by_level = sum_waits(report.cost_s_by_layer)
        self._exchange_wait_s = report.exchange_wait_s
        return proposal

    def begin(self, attached: Attached, module: nn.Module) -> None:
        """Register the run and start to report the session of this module."""
        self._attached = attached
        session, before = attached.session, self._state
        self._phases = Phases(
            clock=self._clock,
            exchange_times=lambda: (session.communicate_s, session.encoded_s),
        )
        time_loading(module, self._phases)
        for optimizer in list_optimizers(attached.optimizer):
            optimizer.register_step_post_hook(self._end_optimizer_step)
        self._phases.start_step()
        self._epoch_began = self.read_totals()
        now = self._clock.now()
        self._change_state(
            world_size=session.world_size, step=session.steps, stepped_at=now, failed=False
        )
        with self._log_errors("begin to report"):
            self._sender.start()
            if before.world_size and not before.failed:
                self._post(build_change_record(before, world_size=session.world_size))
            self._post(build_started_record(attached, before, now=now))
            self._orders.on_orders(self._apply_orders)
            self._orders.start()
            threading.Thread(target=self._refresh, name="accordion-guest", daemon=True).start()

    def record_boundary(self, result: StepResult) -> None:
        """Record a step boundary: progress, and the switch to another decision."""
        with self._log_errors("record a step"):
            self._phases.count_lap("compute")
            if result.switch is not None:
                self._record_switch(result.switch)
            session = self._attached.session
            self._boundary = _Boundary(self._clock.now(), session.steps, session.epoch)
            self._update_progress()

    def record_epoch(self, ended: EndedEpoch, metrics: Mapping[str, Any]) -> None:
        """Record an epoch that has ended, with the script's metrics and the following switch."""
        with self._log_errors("record an epoch"):
            self._record_epoch(ended, keep_finite_numbers(metrics))

    def read_totals(self) -> Totals:
        """Return what the session has counted so far."""
        return read_totals(self._attached.session, self._phases.seconds)

    def keep_newest_step(self) -> None:
        """Send and save the newest step, so that the next worker group knows it."""
        with self._log_errors("send the newest step"):
            self._send_newest_step()
        if (boundary := self._boundary) is not None:
            self._change_state(step=boundary.step, stepped_at=boundary.time)
        self._save_changes()

    def record_end(self, failure: FailureRecord | None) -> bool:
        """Record how the training functions ended; return whether the run has ended.

        After a failure, Ray Train may restart the run. The end is written to the disk before
        anything is sent, because Ray Train may end this process at any moment.
        """
        self._closed.set()
        before, session = self._state, self._attached.session
        is_last = is_last_failure(before.failures, self._max_failures)
        end: EndRecord | None = EndRecord(status="SUCCEEDED", reason="COMPLETED")
        if failure is not None:
            at = {"epoch": session.epoch, "step": session.steps}
            self._post(failure.model_copy(update={"final": is_last, **at}))
            end = _build_end(failure) if is_last else None
        if end is not None:
            self._post(end)
        self._change_state(
            step=session.steps,
            stepped_at=self._clock.now(),
            failed=failure is not None,
            failures=before.failures + (failure is not None),
            ended=end is not None,
        )
        self._save_changes()
        if self._connection.is_registered:
            self._sender.flush(END_FLUSH_S)
        return end is not None

    def close(self) -> None:
        """Stop reporting; undelivered records stay in the journal."""
        self._closed.set()
        self._save_changes()
        self._orders.close()
        self._sender.close()

    def count_seconds(self, phase: str) -> None:
        """Count the time since the last call as a phase, except waiting for exchanges; loading for
        the next step begins.
        """
        self._phases.count_lap(phase)
        self._phases.start_step()

    def _end_optimizer_step(self, *_: object) -> None:
        """Count the optimizer's step, which follows the session's boundary."""
        self.count_seconds("optimize")

    def _record_epoch(self, ended: EndedEpoch, numbers: Mapping[str, float]) -> None:
        session = self._attached.session
        spent, self._epoch_began = ended.totals.since(self._epoch_began), ended.totals
        self._loss = find_loss(numbers)
        statistic, self._statistic = self._statistic, None
        agreement, self._agreement = self._agreement, None
        self._post(
            EpochRecord(
                epoch=ended.epoch,
                step=ended.switch.decision.step,
                world_size=session.world_size,
                loss=self._loss,
                metrics=dict(numbers),
                lr=ended.lr,
                global_batch=session.global_batch,
                samples=spent.steps * session.global_batch,
                skipped_steps=spent.skipped_steps,
                seconds_by_phase=dict(spent.seconds),
                bytes=spent.bytes,
                statistic_by_layer=None if statistic is None else keep_finite_numbers(statistic),
                agreement=agreement,
                regime_by_layer=dict(ended.decision.regime_by_layer),
                level_by_layer={
                    layer: level.name for layer, level in ended.decision.level_by_layer.items()
                },
            )
        )
        self._record_switch(ended.switch)
        self._step_times.start_epoch(
            self._clock.elapsed(), ended.switch.decision.step, ended.totals.seconds
        )
        self._change_state(step=session.steps, stepped_at=self._clock.now())

    def _record_switch(self, switch: Switch) -> None:
        for record in switch_records(switch):
            self._post(record)

    def _post(self, payload: Payload) -> None:
        if self._is_broken:
            return
        try:
            self._sender.put(payload)
        except OSError as error:
            self._is_broken = True
            logger.warning(
                "the records of this guest run cannot be written to %s (%s); training continues,"
                " but the service gets no more of them",
                self._journal.storage,
                error,
            )

    def _update_progress(self) -> None:
        session, now = self._attached.session, self._clock.elapsed()
        self._step_times.observe_step(now, session.steps, self._phases.seconds)
        passed, steps = now - self._progress_at[0], session.steps - self._progress_at[1]
        if self._progress is not None and passed < PROGRESS_EVERY_S:
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
            bytes=read_totals(session, {}).bytes,
            seconds_by_phase=dict(self._phases.seconds),
            global_batch=session.global_batch,
            step_s_by_phase=self._step_times.means(),
            link=dict(session.link),
            receive_s_by_rank=session.receive_s_by_rank,
            wait_s_by_level=dict(self._wait_s_by_level),
            exchange_wait_s=self._exchange_wait_s,
        )
        self._sender.put_progress(self._progress)

    def _refresh(self) -> None:
        """Keep the run registered and its progress and state up to date, until the run ends."""
        while not self._connection.is_superseded:
            with self._log_errors("register with the service"):
                self._connection.refresh()
                if self._connection.is_registered:
                    self._change_state(installation=self._connection.installation)
            self.keep_newest_step()
            if self._closed.wait(REFRESH_S):
                return

    def _send_newest_step(self) -> None:
        """Send the newest step with its own time if it followed the last progress too soon."""
        boundary, progress = self._boundary, self._progress
        if boundary is not None and progress is not None and boundary.step > progress.step:
            self._progress = progress.model_copy(update=boundary._asdict())
            self._sender.put_progress(self._progress)

    def _change_state(self, **changes: Any) -> None:
        with self._changing:
            self._state = replace(self._state, **changes)

    def _save_changes(self) -> None:
        with self._log_errors("save the state of this guest run"), self._saving:
            state = self._state
            if state != self._saved:
                self._save(state)
                self._saved = state

    @contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        """Log an error the first time that an operation fails; training continues."""
        try:
            yield
        except Exception:
            if what not in self._failed:
                self._failed.add(what)
                logger.exception("this guest run could not %s; training continues", what)

    def _apply_orders(self, orders: DesiredState) -> None:
        """Apply the overrides of the newest orders; called by the thread that receives them."""
        if orders.overrides != self._overrides:
            self._overrides = orders.overrides
            self._attached.session.override(
                [one for one in orders.overrides if self._is_possible(one)]
            )

    def _is_possible(self, override: Override) -> bool:
        try:
            self._attached.session.controller.check_override(override)
        except OverrideError as error:
            self._post(RejectedRecord(override_id=override.id, reason=str(error)))
            return False
        return True


def _build_end(failure: FailureRecord) -> EndRecord:
    reason: EndReason = "TASK_RAISED" if failure.cause == "job" else "TOO_MANY_FAILURES"
    return EndRecord(status="FAILED", reason=reason, message=failure.message)
