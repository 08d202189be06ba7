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
from collections.abc import Callable

import structlog
import uuid_utils

from accordion_service.domain.jobs.actions import Follow, Interrupt, StartAttempt, Wait
from accordion_service.domain.jobs.reconcile import (
    ObservedJob,
    ObservedSupervisor,
    action_at_stop,
    next_action,
)
from accordion_service.domain.jobs.status_table import STATUS_TABLE
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status
from accordion_service.errors import RuntimeUnavailable
from accordion_service.job_inputs.code import CodeStore
from accordion_service.job_inputs.environment import JobEnv
from accordion_service.runtime.protocol import Runtime, SupervisorState
from accordion_service.scheduler.allocator import Allocator, ClusterState
from accordion_service.scheduler.attempts import Attempts
from accordion_service.scheduler.autoscaling import Autoscaling
from accordion_service.scheduler.deadlines import Deadlines
from accordion_service.scheduler.foreign_jobs import ClusterClaim
from accordion_service.scheduler.guests import GuestRuns
from accordion_service.scheduler.housekeeping import Housekeeping
from accordion_service.scheduler.order_delivery import OrderDelivery
from accordion_service.scheduler.plans import PlanRuns
from accordion_service.scheduler.report_drain import ReportDrain
from accordion_service.scheduler.survey import Survey
from accordion_service.scheduler.time_limits import TimeLimits
from accordion_service.scheduler.turn_logs import (
    LeaseLog,
    OutageLog,
    describe_outage,
    is_outage,
    log_failure,
)
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.ingest.report_writes import ReportWrites
from accordion_service.store.migrations import upgrade
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.reads.unfinished_jobs import UnfinishedJobs
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.history_limits import HistoryLimits
from accordion_service.store.writes.leases import Lease, LeaseLost
from accordion_service.store.writes.plans import PlanStore

Clock = Callable[[], float]
"""Returns seconds: since 1970 for `clock`, monotonic for `monotonic`."""
_LAST_TURNS_S = 5.0
"""Time to end attempts by force, after their time to save."""
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
        self._settings, self._monotonic = settings, monotonic
        self._queue, self._jobs = QueueReads(database), UnfinishedJobs(database)
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
        self._cluster = ClusterState()
        self._lease_log, self._ray_log = LeaseLog(), OutageLog("Ray", monotonic)
        self._stops_at: float | None = None
        orders = OrderDelivery(runtime, database, self._writes)
        writes = ReportWrites(database, clock, limits)
        self._reports = ReportDrain(
            runtime, settings.storage_of, writes, lease=self._lease, clock=clock
        )
        self._scaling = Autoscaling(database, runtime, settings, counts=self._counts, clock=clock)
        self._times = TimeLimits(database, self._writes, settings, clock=clock, monotonic=monotonic)
        self._guests = GuestRuns(
            JobReads(database),
            orders,
            reports=self._reports,
            settings=settings,
            clock=clock,
            monotonic=monotonic,
        )
        longest_s = max(settings.start_timeout_s, settings.cancel_grace_s)
        self._deadlines = Deadlines(clock=clock, monotonic=monotonic, longest_s=longest_s)
        self._build_jobs(database, orders, clock=clock)
        self._survey = self._build_survey(database, runtime, clock=clock)

    def _build_jobs(self, database: Database, orders: OrderDelivery, *, clock: Clock) -> None:
        """Build what starts jobs and plans from uploaded code and secrets, and what removes it."""
        runtime, settings, monotonic = orders.runtime, self._settings, self._monotonic
        code, env = CodeStore(settings.code, clock), JobEnv(settings, database, clock)
        self._allocator = Allocator(self._jobs, self._writes, self._lease, env=env, clock=monotonic)
        plans = PlanStore(database, clock)
        self._plans = PlanRuns(plans, runtime, code, env=env, monotonic=monotonic)
        self._attempts = Attempts(
            orders,
            self._reports,
            cluster=self._cluster,
            lease=self._lease,
            database=database,
            settings=settings,
            code=code,
            env=env,
        )
        self._housekeeping = Housekeeping(
            database,
            runtime,
            settings,
            code=code,
            clock=clock,
            monotonic=monotonic,
            counts=self._counts,
        )

    def _build_survey(self, database: Database, runtime: Runtime, *, clock: Clock) -> Survey:
        return Survey(
            database,
            runtime,
            self._settings,
            cluster=self._cluster,
            jobs=self._jobs,
            writes=self._writes,
            attempts=self._attempts,
            guests=self._guests,
            reports=self._reports,
            deadlines=self._deadlines,
            clock=clock,
            monotonic=self._monotonic,
        )

    def begin_stop(self, grace_s: float) -> None:
        """From the next turn, start nothing, and let all jobs save and return to the queue; those
        that have not after `grace_s` seconds return without.
        """
        self._stops_at = self._monotonic() + grace_s

    def has_attempts(self) -> bool:
        """Whether workers are allocated to a job of this service."""
        return any(
            STATUS_TABLE[Status(job.status)].is_active and job.kind == Kind.JOB
            for job in self._jobs.list_all()
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
        self._lease_log.note_holder(token)
        if token is None:
            self._survey.forget()
            self._plans.stop()
            self._jobs.forget_all()
            return False
        try:
            self._reconcile_all(token)
            self._housekeeping.run_if_due()
        except LeaseLost:
            self._lease_log.note_holder(None)
            self._survey.forget()
            return False
        return True

    def _reconcile_all(self, token: int) -> None:
        try:
            if not self._claim.hold():
                return
            fresh = self._survey.refresh(token)
            self._ray_log.note_success()
        except RuntimeUnavailable as error:
            self._record_unreachable(token, str(error))
            return
        jobs = self._jobs.list_all()
        self._reports.drain_all(jobs, self._cluster.supervisors)
        self._times.stop_overdue(jobs, token)
        self._reports.store_running(jobs, self._cluster.supervisors, token)
        for job in self._jobs.list_all():
            self._reconcile_job(job, token, fresh=fresh)
        if self._stops_at is not None:
            return
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

    def _record_unreachable(self, token: int, message: str) -> None:
        self._ray_log.note_failure(message)
        self._writes.record_cluster(token, nodes=None, message=message)
        self._times.stop_unreachable(self._jobs.list_all(), token)
        # The message changes every turn: the cluster row has the newest one, jobs keep the first.
        for job in self._queue.waiting():
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
        except Exception as error:  # noqa: BLE001  # one failing job must not block the others
            self._counts.count_error("job")
            log_failure("job", error, job_id=job_id)

    def _apply_next_action(self, job: JobRow, state: SupervisorState | None, token: int) -> None:
        now = self._monotonic()
        seen = ObservedJob(
            status=Status(job.status),
            attempt=job.attempt,
            is_paused_by_user=job.desired == Desired.PAUSE,
            deadline=self._cluster.extended_deadline(
                self._deadlines.get(job), job, self._settings.start_timeout_s
            ),
            is_missing=self._cluster.seconds_missing(job.id, now) >= self._settings.patience_s,
            unplaceable=self._allocator.seconds_unplaceable(job.id) >= self._settings.patience_s,
        )
        supervisor = self._observe_supervisor(job, state) if state else None
        end = self._attempts.read_end(job, state)
        action = next_action(seen, supervisor, has_ended=end is not None, now=now)
        if self._stops_at is not None:
            action = action_at_stop(seen, action, is_over=now >= self._stops_at)
        match action:
            case Wait():
                pass
            case Follow():
                self._attempts.follow(job, state, token)
            case StartAttempt():
                self._attempts.start(job, token)
            case Interrupt(message=message):
                self._attempts.interrupt(job, message, token)
            case _:
                self._attempts.end(job, action, end=end, token=token)

    def _observe_supervisor(self, job: JobRow, state: SupervisorState) -> ObservedSupervisor:
        return ObservedSupervisor(
            attempt=state.attempt, phase=state.phase, unplaced=self._cluster.num_unplaced(job)
        )


def run_scheduler(
    settings: Settings,
    runtime: Runtime,
    *,
    clock: Clock = time.time,
    stop: threading.Event,
    at_once: threading.Event | None = None,
) -> None:
    """Migrate the database and run turns until `stop` is set; then release the lease.

    With `at_once`, the cluster ends with this process: before, all jobs save and return to the
    queue, for which they have `cancel_grace_s` seconds, and none once `at_once` is set.
    """
    upgrade(settings.database)
    database = Database(settings.database)
    scheduler = Scheduler(database=database, runtime=runtime, settings=settings, clock=clock)
    _log.info("scheduler began", database=database.engine.url.render_as_string(hide_password=True))
    outages = OutageLog("database", time.monotonic)
    while not stop.is_set():
        _turn(scheduler, outages)
        stop.wait(settings.drain_interval_s)
    if at_once is not None:
        _end_attempts(scheduler, outages, settings, at_once=at_once)
    scheduler.release()
    database.close()
    _log.info("scheduler ended")


def _turn(scheduler: Scheduler, outages: OutageLog) -> None:
    try:
        scheduler.run_once()
    except Exception as error:  # noqa: BLE001  # the loop's one catch-all: log, and retry
        if is_outage(error):
            outages.note_failure(describe_outage(error))
        else:
            _log.exception("turn")
    else:
        outages.note_success()


def _end_attempts(
    scheduler: Scheduler, outages: OutageLog, settings: Settings, *, at_once: threading.Event
) -> None:
    """Let all jobs save and return to the queue."""
    scheduler.begin_stop(settings.cancel_grace_s)
    limit = time.monotonic() + settings.cancel_grace_s + _LAST_TURNS_S
    while scheduler.has_attempts() and time.monotonic() < limit:
        if at_once.is_set():
            scheduler.begin_stop(0.0)
            limit = min(limit, time.monotonic() + _LAST_TURNS_S)
        _turn(scheduler, outages)
        time.sleep(settings.drain_interval_s)
