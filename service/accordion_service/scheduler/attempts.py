"""Starts attempts of jobs, follows them, and ends those that are lost, paused or finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import assert_never

import structlog

from accordion_service.domain.jobs.actions import Finish, MarkLost, Pause, Remove, Requeue
from accordion_service.domain.jobs.status_table import HELD
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.errors import Invalid, NotFound, Unavailable, UnreadableSecret
from accordion_service.job_inputs.code import CodeStore
from accordion_service.job_inputs.environment import JobEnv, find_data_cache
from accordion_service.job_inputs.pip_index import find_pip_index
from accordion_service.job_inputs.warm_starts import find_initial_model
from accordion_service.runtime.protocol import SupervisorState
from accordion_service.scheduler.allocator import ClusterState
from accordion_service.scheduler.order_delivery import OrderDelivery
from accordion_service.scheduler.report_drain import ReportDrain
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.ingest.record_ingest import has_new_data
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import UnreadableSpec, spec_of
from accordion_service.store.writes.leases import Lease
from accordion_workers.records.contract import Drained, EndRecord, Launch, PausedRecord

_CANCELLED = EndRecord(
    status="CANCELLED",
    reason="CANCELLED_BY_USER",
    message="cancelled; its workers were gone or did not stop in time",
)
AttemptEnd = Remove | MarkLost | Requeue | Pause | Finish
"""Actions that end an attempt."""
_log = structlog.get_logger()


class Attempts:
    """Attempts of jobs: each is one supervisor on the cluster, which runs the workers."""

    def __init__(
        self,
        orders: OrderDelivery,
        reports: ReportDrain,
        *,
        cluster: ClusterState,
        lease: Lease,
        database: Database,
        settings: Settings,
        code: CodeStore,
        env: JobEnv,
    ) -> None:
        self._orders = orders
        self._runtime, self._writes = orders.runtime, orders.writes
        self._reports = reports
        self._cluster, self._lease = cluster, lease
        self._database, self._settings = database, settings
        self._code, self._env = code, env

    def start(self, job: JobRow, token: int) -> None:
        """Start the supervisor of a job; one that cannot be started fails, waits or is queued."""
        storage = self._settings.storage_of(job.id)
        try:
            self._start_supervisor(job, storage, token)
        except (Invalid, NotFound, UnreadableSpec) as error:
            self._finish_job(
                job, EndRecord(status="FAILED", reason="START_FAILED", message=str(error)), token
            )
        except UnreadableSecret as error:
            # Nothing is held for it: it waits in the queue, as any other job with such a secret.
            self._requeue_job(job, str(error), token, reason=Reason.WAITING_FOR_SECRET)
        except Unavailable as error:
            self._writes.record_wait_message(job, token, str(error))
        except OSError as error:
            why = (
                f"its storage {storage} cannot be written ({error.strerror}); free some space, or"
                " change its permissions"
            )
            self._writes.record_wait_message(job, token, why, waits=True)

    def _start_supervisor(self, job: JobRow, storage: str, token: int) -> None:
        spec = spec_of(job)
        model = find_initial_model(job, spec, database=self._database, settings=self._settings)
        launch = Launch(
            job_id=job.id,
            attempt=job.attempt,
            workers=job.workers,
            storage=storage,
            spec=spec,
            retried_attempt=job.retried_attempt or 0,
            saved_step=HistoryReads(self._database).saved_step(job.id),
            code=str(self._code.hand_over(spec.code, Path(storage))) if spec.code else None,
            env=self._env.resolve(spec, job.owner),
            data_cache=find_data_cache(self._settings),
            avoid=ClusterReads(self._database).unschedulable_nodes(),
            pip_index=find_pip_index(self._settings, spec, is_resolved=job.packages is not None),
            warm_start=model,
        )
        self._lease.confirm(token)
        self._runtime.start(launch)
        self._cluster.supervisors[job.id] = SupervisorState(
            job_id=job.id, attempt=job.attempt, phase="starting"
        )
        self._cluster.missing_since.pop(job.id, None)
        _log.info("launched", job_id=job.id, attempt=job.attempt, workers=job.workers)

    def follow(self, job: JobRow, state: SupervisorState | None, token: int) -> None:
        """Store what a job reports, and send it its orders; end it if it reports its end."""
        drained = self._reports.take(job)
        ends = (
            record.payload
            for record in drained.records
            if isinstance(record.payload, EndRecord) and record.attempt > (job.retried_attempt or 0)
        )
        end = next(ends, None)
        if end is not None:
            self._finish_job(job, end, token)
            return
        if any(
            isinstance(r.payload, PausedRecord) and r.attempt == job.attempt
            for r in drained.records
        ):
            self._finish_pause(job, token)
            return
        if has_new_data(job, drained) and self._reports.store(job, token, drained):
            self._clear_message(state, drained)
        elif state is not None:
            waits, has_workers = state.phase == "waiting", state.placed != ()
            self._writes.record_wait_message(
                job, token, state.message, waits=waits, has_workers=has_workers
            )
        if job.id in self._reports.answered:
            self._orders.deliver(job, drained.orders_version, token)

    def _clear_message(self, state: SupervisorState | None, drained: Drained) -> None:
        """A supervisor's report that is older than its records does not show the current state of
        the job.
        """
        if state is not None and drained.records:
            self._cluster.supervisors[state.job_id] = replace(state, message="")

    def read_end(self, job: JobRow, state: SupervisorState | None) -> EndRecord | None:
        """Read how the job ended, if its workers may have; None if it has not ended.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        if Status(job.status) in HELD or (state is not None and state.phase != "ended"):
            return None
        return self._runtime.read_outcome(
            job.id,
            self._settings.storage_of(job.id),
            retried_attempt=job.retried_attempt or 0,
        )

    def end(self, job: JobRow, action: AttemptEnd, *, end: EndRecord | None, token: int) -> None:
        """Store the last output of the workers, and end the attempt as the action says."""
        self._reports.drain_final_logs(job)
        match action:
            case Remove(why):
                self.remove_supervisor(job.id, token, why=why)
            case MarkLost():
                self._mark_lost(job, action, token)
            case Requeue(message=message, reason=reason):
                self._requeue_job(job, message, token, reason=reason)
            case Pause():
                self._finish_pause(job, token)
            case Finish():
                self._finish_job(job, end or _CANCELLED, token)
            case _:
                assert_never(action)

    def remove_supervisor(self, job_id: str, token: int, *, why: str) -> None:
        """End the processes of a job.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
            LeaseLost: another scheduler has begun meanwhile.
        """
        self._lease.confirm(token)
        _log.info("removed", job_id=job_id, reason=why)
        self._runtime.remove(job_id)
        self._cluster.supervisors.pop(job_id, None)

    def _mark_lost(self, job: JobRow, action: MarkLost, token: int) -> None:
        # A missing supervisor may be alive: it must not return beside its successor.
        self.remove_supervisor(job.id, token, why=action.message)
        budget = self._settings.max_lost_attempts
        if self._writes.mark_lost(
            job, token, action=action, history=self._reports.history(job), budget=budget
        ):
            self._reports.mark_stored(job.id)

    def interrupt(self, job: JobRow, message: str, token: int) -> None:
        """Let the workers of a job save and stop, and return the job to the queue."""
        self._writes.preempt(
            job,
            token,
            why=message,
            grace_s=self._settings.cancel_grace_s,
            reason=Reason.SERVICE_STOPPED,
        )

    def _requeue_job(self, job: JobRow, message: str, token: int, *, reason: Reason) -> None:
        """Return the job to the queue.

        Its supervisor is removed first, so that no process starts beside the next attempt.
        """
        self.remove_supervisor(job.id, token, why=message)
        history = self._reports.history(job)
        if self._writes.requeue(job, token, reason=reason, message=message, history=history):
            self._reports.mark_stored(job.id)

    def _finish_pause(self, job: JobRow, token: int) -> None:
        """End the attempt but not the job; remove its processes before the next attempt starts."""
        if self._writes.finish_pause(job, token, drained=self._reports.history(job)):
            self._reports.mark_stored(job.id)
            self.remove_supervisor(job.id, token, why=f"attempt {job.attempt} has paused")

    def _finish_job(self, job: JobRow, end: EndRecord, token: int) -> None:
        """Store the end of the job after all earlier reports."""
        if self._writes.finish(job, token, end=end, drained=self._reports.history(job)):
            self._reports.mark_stored(job.id)
            self.remove_supervisor(job.id, token, why=f"the job ended: {end.reason}")
