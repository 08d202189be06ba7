"""The scheduler process, the only one that uses the cluster: a loop of load, work and guarded
writes.

Every turn reads the rows, queries the cluster (outside any transaction), and writes with the
lease's token. If it is killed, its successor finds consistent rows and compares them with the
cluster.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import structlog
import uuid_utils

from service.domain.capacity.cluster_snapshot import read_avoided
from service.domain.jobs.actions import (
    Finish,
    Follow,
    MarkLost,
    Pause,
    Remove,
    Requeue,
    StartAttempt,
    Wait,
)
from service.domain.jobs.reconcile import ObservedJob, ObservedSupervisor, next_action
from service.domain.jobs.status_table import HELD
from service.domain.jobs.statuses import Kind, Reason, Status
from service.errors import Invalid, NotFound, RuntimeUnavailable, Unavailable, UnreadableSecret
from service.job_inputs.code import CodeStore
from service.job_inputs.environment import JobEnv, find_data_cache
from service.job_inputs.pip_index import find_pip_index
from service.job_inputs.warm_starts import find_initial_model
from service.runtime.protocol import Runtime, SupervisorState
from service.scheduler.allocator import Allocator, ClusterState
from service.scheduler.autoscaling import Autoscaling
from service.scheduler.deadlines import Deadlines
from service.scheduler.foreign_jobs import ClusterClaim, ForeignJobs
from service.scheduler.guests import GuestRuns
from service.scheduler.housekeeping import Housekeeping
from service.scheduler.nodes import NodeAvoidance
from service.scheduler.order_delivery import OrderDelivery
from service.scheduler.plans import PlanRuns
from service.scheduler.report_drain import ReportDrain
from service.scheduler.time_limits import TimeLimits
from service.settings.settings import Settings
from service.store.engine.database import Database
from service.store.ingest.record_ingest import has_new_data
from service.store.ingest.report_writes import ReportWrites
from service.store.migrations import upgrade
from service.store.reads.repository import Repository
from service.store.reads.unfinished_jobs import UnfinishedJobs
from service.store.scheduling.scheduler_writes import SchedulerWrites
from service.store.tables.models import JobRow
from service.store.tables.stored_spec import UnreadableSpec, spec_of
from service.store.writes.history_limits import HistoryLimits
from service.store.writes.leases import Lease, LeaseLost
from service.store.writes.plans import PlanStore
from workers.contract import AVOID_S, Drained, EndRecord, Launch, PausedRecord

Clock = Callable[[], float]
"""Returns seconds: since 1970 for `clock`, monotonic for `monotonic`."""
_CANCELLED = EndRecord(
    status="CANCELLED",
    reason="CANCELLED_BY_USER",
    message="cancelled; its workers were gone or did not stop in time",
)
_End = Remove | MarkLost | Requeue | Pause | Finish
_log = structlog.get_logger()


class Scheduler:
    """Scheduler on a migrated database; `run_once` is one turn."""

    def __init__(
        self,
        *,
        database: Database,
        runtime: Runtime,
        settings: Settings,
        clock: Clock,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._clock, self._monotonic = clock, monotonic
        self._repository, self._jobs = Repository(database), UnfinishedJobs(database)
        limits = HistoryLimits(events=settings.max_events, log_bytes=settings.max_log_bytes)
        self._writes = SchedulerWrites(database, clock, limits)
        owner = f"{socket.gethostname()}:{os.getpid()}:{uuid_utils.uuid4()}"
        self._lease = Lease(
            database, owner=owner, clock=clock, monotonic=monotonic, lease_s=settings.lease_s
        )
        self._counts = self._lease.counts
        self._claim = ClusterClaim(
            runtime, scheduler=owner, clock=monotonic, last_s=settings.lease_s
        )
        self._foreign, self._cluster = ForeignJobs(), ClusterState()
        self._nodes = NodeAvoidance(database, settings, clock)
        self._code = CodeStore(settings.code, clock)
        self._env, plans = JobEnv(settings, database, clock), PlanStore(database, clock)
        self._allocator = self._build_allocator()
        self._plans = PlanRuns(plans, runtime, self._code, env=self._env, monotonic=monotonic)
        self._refreshed_at: float | None = None
        self._housekeeping = self._build_housekeeping(database, clock)
        self._reports = self._build_reports(ReportWrites(database, clock, limits), clock)
        self._scaling = Autoscaling(database, runtime, settings, counts=self._counts, clock=clock)
        self._orders = OrderDelivery(runtime, self._writes)
        self._times = TimeLimits(
            self._repository, self._writes, settings, clock=clock, monotonic=monotonic
        )
        self._guests = GuestRuns(
            self._repository,
            self._orders,
            reports=self._reports,
            settings=settings,
            clock=clock,
            monotonic=monotonic,
        )
        longest_s = max(settings.start_timeout_s, settings.cancel_grace_s)
        self._deadlines = Deadlines(clock=clock, monotonic=monotonic, longest_s=longest_s)
        self._missing_since: dict[str, float] = {}
        """When the supervisor of an unfinished job was first found missing."""

    def _build_allocator(self) -> Allocator:
        jobs, writes, env = self._jobs, self._writes, self._env
        return Allocator(jobs, writes, self._lease, env=env, clock=self._monotonic)

    def _build_reports(self, writes: ReportWrites, clock: Clock) -> ReportDrain:
        storage_of = self._settings.storage_of
        return ReportDrain(self._runtime, storage_of, writes, lease=self._lease, clock=clock)

    def _build_housekeeping(self, database: Database, clock: Clock) -> Housekeeping:
        return Housekeeping(
            database,
            self._runtime,
            self._settings,
            code=self._code,
            clock=clock,
            monotonic=self._monotonic,
            counts=self._counts,
        )

    def run_once(self) -> bool:
        """Run one turn; False if another scheduler holds the lease and nothing was done."""
        started = self._monotonic()
        try:
            is_done = self._run_turn()
        except Exception:
            self._counts.count_error("turn")
            self._jobs.forget_all()
            self._counts.observe_turn(self._monotonic() - started)
            raise
        if is_done:
            self._counts.observe_turn(self._monotonic() - started)
        return is_done

    def _run_turn(self) -> bool:
        token = self._lease.hold()
        if token is None:
            self._refreshed_at = None
            self._plans.stop()
            self._jobs.forget_all()
            return False
        try:
            self._reconcile_all(token)
            self._housekeeping.run_if_due()
        except LeaseLost as error:
            _log.warning("lease lost", error=str(error))
            self._refreshed_at = None
            return False
        return True

    def _reconcile_all(self, token: int) -> None:
        try:
            if not self._claim.hold():
                return
            fresh = self._refresh_cluster(token)
        except RuntimeUnavailable as error:
            self._record_unreachable(token, str(error))
            return
        jobs = self._jobs.list_all()
        self._reports.drain_all(jobs, self._cluster.supervisors)
        self._times.stop_overdue(jobs, token)
        self._reports.store_running(jobs, self._cluster.supervisors, token)
        for job in self._jobs.list_all():
            self._reconcile_job(job, token, fresh=fresh)
        self._times.queue_due(token)
        self._cluster.awaiting_nodes = self._scaling.list_awaiting(token)
        for job in self._allocator.admit(self._cluster, token, self._settings):
            self._reconcile_job(job, token, fresh=True)
        self._allocator.reallocate(self._cluster, token, self._settings)
        self._plans.advance()
        if fresh:
            self._scaling.update(self._cluster, token)

    def release(self) -> None:
        """Release the lease, so that a successor need not wait."""
        self._housekeeping.stop()
        self._claim.release()
        self._scaling.release()
        self._lease.release()

    def _refresh_cluster(self, token: int) -> bool:
        """Survey nodes and supervisors if due; True if it was.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
            LeaseLost: another scheduler has begun meanwhile.
        """
        now = self._monotonic()
        if (
            self._refreshed_at is not None
            and now - self._refreshed_at < self._settings.survey_interval_s
        ):
            return False
        self._refreshed_at = None
        self._restore_avoided(token)
        self._cluster.nodes = self._nodes.mark_nodes(self._runtime.nodes(), token)
        found = sorted(self._runtime.supervisors(), key=lambda supervisor: supervisor.attempt)
        self._cluster.update_supervisors(found, now)
        # Read after the survey, which may be slow: every listed supervisor has its row by now.
        self._guests.refresh_registered(token)
        unfinished = self._repository.unfinished_ids()
        self._cluster.update_foreign_use(self._jobs.list_allocated(), now)
        unknown = self._remove_ended(self._cluster.supervisors.keys() - unfinished, token)
        self._foreign.update(self._runtime.count_foreign_supervisors(), unknown)
        missing = unfinished - self._cluster.supervisors.keys()
        self._missing_since = {job_id: self._missing_since.get(job_id, now) for job_id in missing}
        self._reports.keep_only(unfinished)
        self._deadlines.keep_only(unfinished)
        self._writes.record_cluster(
            token,
            nodes=self._cluster.nodes,
            message=self._foreign.message,
            dashboard_url=self._runtime.dashboard_url(),
        )
        self._refreshed_at = now
        return True

    def _restore_avoided(self, token: int) -> None:
        """Read on which nodes jobs without a supervisor could not start, once for each lease."""
        if self._cluster.restored_with == token:
            return
        stored = self._repository.cluster()
        if stored is not None and stored.seen_at is not None:
            age_s = max(0.0, self._clock() - stored.seen_at)
            until = self._monotonic() + AVOID_S - age_s
            self._cluster.restore_avoided(read_avoided(stored.nodes), until)
        self._cluster.restored_with = token

    def _remove_ended(self, job_ids: Set[str], token: int) -> Set[str]:
        """Remove supervisors of ended jobs; return ids of jobs that the database does not have."""
        known = self._repository.known(job_ids)
        for job_id in known:
            self._remove_supervisor(job_id, token, why="the job has ended")
        for job_id in job_ids - known:
            # It belongs to another copy of this database, or to its state before a backup was
            # restored.
            self._cluster.supervisors.pop(job_id)
        return job_ids - known

    def _record_unreachable(self, token: int, message: str) -> None:
        self._writes.record_cluster(token, nodes=None, message=message)
        self._times.stop_unreachable(self._jobs.list_all(), token)
        # The message changes every turn: the cluster row has the newest one, jobs keep the first.
        for job in self._repository.queue():
            if job.reason != Reason.CLUSTER_UNREACHABLE:
                self._writes.record_wait_reason(
                    job, token, reason=Reason.CLUSTER_UNREACHABLE, message=message
                )

    def _reconcile_job(self, job: JobRow, token: int, *, fresh: bool) -> None:
        job_id, supervisor = job.id, self._cluster.supervisors.get(job.id)
        is_guest = job.kind == Kind.GUEST
        if self._lease.hold() != token or (supervisor is None and not fresh and not is_guest):
            return
        try:
            if is_guest:
                self._guests.follow(job, token)
            else:
                self._apply_next_action(job, supervisor, token)
        except LeaseLost:
            raise
        except RuntimeUnavailable as error:
            _log.warning("cluster", job_id=job_id, error=str(error))
        except Exception:  # noqa: BLE001  # one failing job must not block the others
            self._counts.count_error("job")
            _log.exception("job", job_id=job_id)

    def _apply_next_action(self, job: JobRow, state: SupervisorState | None, token: int) -> None:
        now = self._monotonic()
        is_missing = now - self._missing_since.get(job.id, now) >= self._settings.patience_s
        seen = ObservedJob(
            status=Status(job.status),
            attempt=job.attempt,
            deadline=self._cluster.extended_deadline(
                self._deadlines.get(job), job, self._settings.start_timeout_s
            ),
            is_missing=is_missing,
            unplaceable=self._allocator.seconds_unplaceable(job.id) >= self._settings.patience_s,
        )
        supervisor = self._observe_supervisor(job, state) if state else None
        may_have_ended = seen.status not in HELD and (state is None or state.phase == "ended")
        end = (
            self._runtime.read_outcome(
                job.id,
                self._settings.storage_of(job.id),
                retried_attempt=job.retried_attempt or 0,
            )
            if may_have_ended
            else None
        )
        action = next_action(seen, supervisor, has_ended=end is not None, now=now)
        match action:
            case Wait():
                pass
            case Follow():
                self._store_reports(job, state, token)
            case StartAttempt():
                self._start_attempt(job, token)
            case _:
                self._end_attempt(job, action, end=end or _CANCELLED, token=token)

    def _observe_supervisor(self, job: JobRow, state: SupervisorState) -> ObservedSupervisor:
        return ObservedSupervisor(
            attempt=state.attempt, phase=state.phase, unplaced=self._cluster.num_unplaced(job)
        )

    def _end_attempt(self, job: JobRow, action: _End, *, end: EndRecord, token: int) -> None:
        self._reports.drain_final_logs(job)
        match action:
            case Remove(why):
                self._remove_supervisor(job.id, token, why=why)
            case MarkLost():
                self._mark_lost(job, action, token)
            case Requeue(message=message):
                self._requeue_job(job, message, token)
            case Pause():
                self._finish_pause(job, token)
            case Finish():
                self._finish_job(job, end, token)
            case _:
                assert_never(action)

    def _store_reports(self, job: JobRow, state: SupervisorState | None, token: int) -> None:
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
            self._writes.record_wait_message(
                job, token, state.message, waits=state.phase == "waiting"
            )
        if job.id in self._reports.answered:
            self._orders.deliver(job, drained.orders_version, token)

    def _clear_message(self, state: SupervisorState | None, drained: Drained) -> None:
        """A supervisor's report that is older than its records does not show the current state of
        the job.
        """
        if state is not None and drained.records:
            self._cluster.supervisors[state.job_id] = replace(state, message="")

    def _start_attempt(self, job: JobRow, token: int) -> None:
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
        model = find_initial_model(job, spec, repository=self._repository, settings=self._settings)
        launch = Launch(
            job_id=job.id,
            attempt=job.attempt,
            workers=job.workers,
            storage=storage,
            spec=spec,
            retried_attempt=job.retried_attempt or 0,
            saved_step=self._repository.saved_step(job.id),
            code=str(self._code.hand_over(spec.code, Path(storage))) if spec.code else None,
            env=self._env.resolve(spec, job.owner),
            data_cache=find_data_cache(self._settings),
            avoid=self._repository.unschedulable_nodes(),
            pip_index=find_pip_index(self._settings, spec, is_resolved=job.packages is not None),
            warm_start=model,
        )
        self._lease.confirm(token)
        self._runtime.start(launch)
        self._cluster.supervisors[job.id] = SupervisorState(
            job_id=job.id, attempt=job.attempt, phase="starting"
        )
        self._missing_since.pop(job.id, None)
        _log.info("launched", job_id=job.id, attempt=job.attempt, workers=job.workers)

    def _remove_supervisor(self, job_id: str, token: int, *, why: str) -> None:
        self._lease.confirm(token)
        _log.info("removed", job_id=job_id, reason=why)
        self._runtime.remove(job_id)
        self._cluster.supervisors.pop(job_id, None)

    def _mark_lost(self, job: JobRow, action: MarkLost, token: int) -> None:
        # A missing supervisor may be alive: it must not return beside its successor.
        self._remove_supervisor(job.id, token, why=action.message)
        budget = self._settings.max_lost_attempts
        if self._writes.mark_lost(
            job, token, action=action, history=self._reports.history(job), budget=budget
        ):
            self._reports.mark_stored(job.id)

    def _requeue_job(
        self, job: JobRow, message: str, token: int, *, reason: Reason = Reason.NOT_PLACED
    ) -> None:
        """Return the job to the queue.

        Its supervisor is removed first, so that no process starts beside the next attempt.
        """
        self._remove_supervisor(job.id, token, why=message)
        history = self._reports.history(job)
        if self._writes.requeue(job, token, reason=reason, message=message, history=history):
            self._reports.mark_stored(job.id)

    def _finish_pause(self, job: JobRow, token: int) -> None:
        """End the attempt but not the job; remove its processes before the next attempt starts."""
        if self._writes.finish_pause(job, token, drained=self._reports.history(job)):
            self._reports.mark_stored(job.id)
            self._remove_supervisor(job.id, token, why=f"attempt {job.attempt} has paused")

    def _finish_job(self, job: JobRow, end: EndRecord, token: int) -> None:
        """Store the end of the job after all earlier reports."""
        if self._writes.finish(job, token, end=end, drained=self._reports.history(job)):
            self._reports.mark_stored(job.id)
            self._remove_supervisor(job.id, token, why=f"the job ended: {end.reason}")


def run_scheduler(
    settings: Settings, runtime: Runtime, *, clock: Clock = time.time, stop: threading.Event
) -> None:
    """Migrate the database and run turns until `stop` is set; then release the lease."""
    upgrade(settings.database)
    database = Database(settings.database)
    scheduler = Scheduler(database=database, runtime=runtime, settings=settings, clock=clock)
    _log.info("scheduler began", database=database.engine.url.render_as_string(hide_password=True))
    while not stop.is_set():
        try:
            scheduler.run_once()
        except Exception:  # noqa: BLE001  # the loop's one catch-all: log, and retry
            _log.exception("turn")
        stop.wait(settings.drain_interval_s)
    scheduler.release()
    database.close()
    _log.info("scheduler ended")
