"""Surveys the cluster: which nodes there are, and which supervisors run on them."""

from __future__ import annotations

from collections.abc import Callable, Set

from accordion_service.domain.capacity.cluster_snapshot import read_avoided
from accordion_service.runtime.protocol import Runtime
from accordion_service.scheduler.allocator import ClusterState
from accordion_service.scheduler.attempts import Attempts
from accordion_service.scheduler.deadlines import Deadlines
from accordion_service.scheduler.foreign_jobs import ForeignJobs
from accordion_service.scheduler.guests import GuestRuns
from accordion_service.scheduler.nodes import NodeAvoidance
from accordion_service.scheduler.report_drain import ReportDrain
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.unfinished_jobs import UnfinishedJobs
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_workers.records.contract import AVOID_S


class Survey:
    """Updates what the scheduler knows of the cluster, every few seconds."""

    def __init__(
        self,
        database: Database,
        runtime: Runtime,
        settings: Settings,
        *,
        cluster: ClusterState,
        jobs: UnfinishedJobs,
        writes: SchedulerWrites,
        attempts: Attempts,
        guests: GuestRuns,
        reports: ReportDrain,
        deadlines: Deadlines,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._cluster = cluster
        self._jobs, self._writes = jobs, writes
        self._job_reads, self._cluster_reads = JobReads(database), ClusterReads(database)
        self._attempts, self._guests = attempts, guests
        self._reports, self._deadlines = reports, deadlines
        self._clock, self._monotonic = clock, monotonic
        self._nodes = NodeAvoidance(database, settings, clock)
        self._foreign = ForeignJobs()
        self._refreshed_at: float | None = None

    def forget(self) -> None:
        """Make the next survey due at once: another scheduler may have acted since the last one."""
        self._refreshed_at = None

    def refresh(self, token: int) -> bool:
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
        unfinished = self._job_reads.unfinished_ids()
        self._cluster.update_foreign_use(self._jobs.list_allocated(), now)
        unknown = self._remove_ended(self._cluster.supervisors.keys() - unfinished, token)
        self._foreign.update(self._runtime.count_foreign_supervisors(), unknown)
        missing = unfinished - self._cluster.supervisors.keys()
        self._cluster.update_missing(missing, now)
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
        stored = self._cluster_reads.get()
        if stored is not None and stored.seen_at is not None:
            age_s = max(0.0, self._clock() - stored.seen_at)
            until = self._monotonic() + AVOID_S - age_s
            self._cluster.restore_avoided(read_avoided(stored.nodes), until)
        self._cluster.restored_with = token

    def _remove_ended(self, job_ids: Set[str], token: int) -> Set[str]:
        """Remove supervisors of ended jobs; return ids of jobs that the database does not have."""
        known = self._job_reads.known(job_ids)
        for job_id in known:
            self._attempts.remove_supervisor(job_id, token, why="the job has ended")
        for job_id in job_ids - known:
            # It belongs to another copy of this database, or to its state before a backup was
            # restored.
            self._cluster.supervisors.pop(job_id)
        return job_ids - known
