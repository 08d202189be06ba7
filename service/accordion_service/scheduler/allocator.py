"""Allocates cluster capacity: which pending job starts, and how many workers a running job
holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from accordion_service.domain.capacity.allocation import (
    find_stranded,
    find_unplaceable,
    plan_allocations,
)
from accordion_service.domain.capacity.queue import Admission, AllocatedJob, plan_queue
from accordion_service.domain.capacity.resources import (
    Resources,
    list_worker_resources,
    sort_custom,
)
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.job_inputs.environment import JobEnv
from accordion_service.job_inputs.queue import QueueReader
from accordion_service.runtime.protocol import Node, SupervisorState
from accordion_service.scheduler.foreign_use import ForeignUse
from accordion_service.settings.settings import Settings
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.unfinished_jobs import UnfinishedJobs
from accordion_service.store.scheduling.scheduler_writes import SchedulerWrites
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import resource_request
from accordion_service.store.writes.leases import Lease
from accordion_workers.records.contract import AVOID_S


@dataclass(slots=True)
class ClusterState:
    """The cluster as the scheduler last saw it."""

    nodes: Sequence[Node] = ()
    supervisors: dict[str, SupervisorState] = field(default_factory=dict)
    """Supervisors by job id."""
    placed: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """Attempt of each job, and the nodes of its worker processes when they were last known; for a
    moment a supervisor may not answer, or be restarted.
    """
    placed_at: dict[str, float] = field(default_factory=dict)
    """When a worker process of the job was last seen placed on a node, or its supervisor resolving
    packages or waiting for the storage, by job id; monotonic clock.
    """
    avoided_until: dict[str, dict[str, float]] = field(default_factory=dict)
    """Nodes on which workers of a job could not start, by job id, and until when that counts after
    its supervisor has ended; monotonic clock.
    """
    restored_with: int | None = None
    """Token of the lease with which `avoided_until` was last restored."""
    missing_since: dict[str, float] = field(default_factory=dict)
    """When the supervisor of an unfinished job was first found missing, by job id; monotonic
    clock.
    """
    foreign_use: ForeignUse = field(default_factory=ForeignUse)
    awaiting_nodes: frozenset[str] = frozenset()
    """Waiting jobs for which the autoscaler adds nodes."""

    def update_supervisors(self, found: Iterable[SupervisorState], now: float) -> None:
        """Store the state of all supervisors of one survey."""
        self.supervisors = {supervisor.job_id: supervisor for supervisor in found}
        placed = {
            job_id: now
            for job_id, supervisor in self.supervisors.items()
            if supervisor.placed or supervisor.phase in {"resolving", "waiting"}
        }
        self.placed |= {
            job_id: (supervisor.attempt, supervisor.placed)
            for job_id, supervisor in self.supervisors.items()
            if supervisor.placed is not None
        }
        kept = {job_id: at for job_id, at in self.placed_at.items() if job_id in self.supervisors}
        self.placed_at = kept | placed
        self._update_avoided(now)

    def _update_avoided(self, now: float) -> None:
        """Note which nodes the supervisors avoid. The next attempt of a job, which has not tried
        them, must not be admitted because of their capacity.
        """
        reported = {job_id: supervisor.avoided for job_id, supervisor in self.supervisors.items()}
        before, self.avoided_until = self.avoided_until, {}
        for job_id in before.keys() | reported.keys():
            known, found = before.get(job_id, {}), reported.get(job_id, ())
            valid = {node: until for node, until in known.items() if until > now}
            until = valid | {node: known.get(node, now + AVOID_S) for node in found}
            if until:
                self.avoided_until[job_id] = until

    def restore_avoided(self, avoided: Mapping[str, Iterable[str]], until: float) -> None:
        """Avoid the nodes that an earlier scheduler noted, by job id, until that time or a later
        one that is known.
        """
        for job_id, nodes in avoided.items():
            known = self.avoided_until.get(job_id, {})
            noted = {node: max(until, known.get(node, until)) for node in nodes}
            self.avoided_until[job_id] = known | noted

    def list_avoided(self) -> dict[str, frozenset[str]]:
        """Return the nodes on which workers of a job cannot start for now, by job id."""
        return {job_id: frozenset(nodes) for job_id, nodes in self.avoided_until.items()}

    def update_missing(self, missing: Iterable[str], now: float) -> None:
        """Note which unfinished jobs have no supervisor, by job id."""
        self.missing_since = {job_id: self.missing_since.get(job_id, now) for job_id in missing}

    def seconds_missing(self, job_id: str, now: float) -> float:
        """How long the supervisor of a job has been missing; 0 if it is there."""
        return now - self.missing_since.get(job_id, now)

    def update_foreign_use(self, rows: Iterable[JobRow], now: float) -> None:
        """Store the use of the nodes, by the workers of these jobs and besides."""
        held = self.held_resources(rows := list(rows))
        ids = {row.id for row in rows}
        self.placed = {job_id: last for job_id, last in self.placed.items() if job_id in ids}
        self.foreign_use.record_survey(self.nodes, held, now)
        found = {size.node: size for size in self.foreign_use.estimate(held)}
        none = Resources(cpus=0.0, gpus=0.0)
        placed = {row.id: Counter(self.placed_nodes(row) or ()) for row in rows}
        self.nodes = [
            replace(
                node,
                workers={
                    id_: counts[node.id] for id_, counts in placed.items() if node.id in counts
                },
                avoided_by=tuple(
                    sorted(id_ for id_, nodes in self.avoided_until.items() if node.id in nodes)
                ),
                cpus_foreign=found.get(node.id, none).cpus,
                gpus_foreign=found.get(node.id, none).gpus,
                memory_bytes_foreign=round(found.get(node.id, none).memory),
                custom_foreign=dict(found.get(node.id, none).custom),
            )
            for node in self.nodes
        ]

    def held_resources(self, rows: Iterable[JobRow]) -> list[Resources]:
        """Workers of these jobs, one entry each, including processes that are about to be
        removed.
        """
        placed = [(row, self.placed_nodes(row) or ()) for row in rows]
        return [
            size
            for row, at in placed
            for size in list_worker_resources(resource_request(row), max(row.workers, len(at)), at)
        ]

    def extended_deadline(
        self, deadline: float | None, job: JobRow, start_timeout_s: float
    ) -> float | None:
        """The job's deadline, extended while its packages are resolved, while it waits for its
        storage, and while it starts and its processes are placed; monotonic clock.

        None is limited here: resolving has a limit of its own; placed processes load their data,
        and the supervisor ends those that are unresponsive or exceed the job's own limit.
        """
        placed_at = self.placed_at.get(job.id)
        if deadline is None or placed_at is None or job.status != Status.STARTING:
            return deadline
        return max(deadline, placed_at + start_timeout_s)

    def usable_nodes(self) -> list[Resources]:
        """Capacity of the nodes that are alive and not draining."""
        return [
            Resources(
                cpus=node.cpus,
                gpus=node.gpus,
                memory=node.memory_bytes,
                custom=sort_custom(node.custom),
                labels=frozenset(node.labels.items()),
                node=node.id,
                unschedulable=node.unschedulable,
                name=node.name or node.address,
            )
            for node in self.nodes
            if node.alive and not node.draining
        ]

    def placed_nodes(self, job: JobRow) -> tuple[str, ...] | None:
        """Nodes of the job's worker processes as last known, in the order in which they are kept;
        None if unknown.
        """
        attempt, placed = self.placed.get(job.id, (0, ()))
        return placed if attempt == job.attempt else None

    def num_unplaced(self, job: JobRow) -> int:
        """Number of processes that the job still needs for its minimum and that have no
        node yet.
        """
        found = self.supervisors.get(job.id)
        if found is None or found.placed is None or found.attempt != job.attempt:
            return 0
        return max(0, min(job.min_workers, job.workers) - len(found.placed))


class Allocator:
    """Admits pending jobs and resizes running ones, based on the actual nodes of the workers."""

    def __init__(
        self,
        jobs: UnfinishedJobs,
        writes: SchedulerWrites,
        lease: Lease,
        *,
        env: JobEnv,
        clock: Callable[[], float],
    ) -> None:
        self._database = jobs.database
        self._jobs = jobs
        self._writes = writes
        self._lease = lease
        self._env = env
        self._clock = clock
        self._unplaceable_since: dict[str, float] = {}
        self._settled: tuple[Any, ...] | None = None
        """Inputs of the last plan if it changed nothing; the same inputs need no new plan."""

    def admit(self, cluster: ClusterState, token: int, settings: Settings) -> list[JobRow]:
        """Admit the next jobs, store why the others wait, and return the admitted ones."""
        reader = QueueReader(
            self._database, settings, cluster.awaiting_nodes, avoided=cluster.list_avoided()
        )
        queue = [job for job in reader.read_queue() if job.id not in cluster.supervisors]
        if not queue:
            return []
        rows = self._jobs.list_allocated()
        unreadable = self._env.find_unreadable(queue)
        admissions = plan_queue(
            reader.list_pending([job for job in queue if job.id not in unreadable]),
            cluster.usable_nodes(),
            reader.list_allocated(rows, cluster.placed_nodes),
            foreign=cluster.foreign_use.estimate(cluster.held_resources(rows)),
            rules=reader.rules,
        )
        admissions |= {
            job_id: Admission(reason=Reason.WAITING_FOR_SECRET, workers=0, message=message)
            for job_id, message in unreadable.items()
        }
        admitted = [
            self._apply_allocation(
                job, admissions[job.id], token, timeout_s=settings.start_timeout_s
            )
            for job in queue
        ]
        return [job for job in admitted if job is not None]

    def reallocate(self, cluster: ClusterState, token: int, settings: Settings) -> None:
        """Resize running jobs to fit the cluster, the queue, and the limits that users set; pause
        some if the settings allow it.
        """
        reader = QueueReader(
            self._database, settings, cluster.awaiting_nodes, avoided=cluster.list_avoided()
        )
        rows = self._jobs.list_allocated()
        jobs = reader.list_allocated(rows, cluster.placed_nodes)
        self._note_unplaceable(jobs, cluster)
        if not rows:
            return
        pending, rules = reader.list_pending(reader.read_contenders()), reader.rules
        nodes = cluster.usable_nodes()
        foreign = cluster.foreign_use.estimate(cluster.held_resources(rows))
        inputs = (jobs, pending, nodes, foreign, rules)
        if inputs == self._settled:
            return
        allocations = plan_allocations(jobs, pending, nodes, foreign=foreign, rules=rules)
        self._settled = None if allocations else inputs
        for row in rows:
            found = allocations.get(row.id)
            if found is None or self._lease.hold() != token:
                continue
            if found.workers:
                self._writes.reallocate(row, token, workers=found.workers, why=found.why)
            else:
                self._writes.preempt(row, token, why=found.why, grace_s=settings.cancel_grace_s)

    def seconds_unplaceable(self, job_id: str) -> float:
        """How long a job without a worker group has had no capacity for its minimum, in seconds; 0
        if it has some.
        """
        since: Mapping[str, float] = self._unplaceable_since
        return max(0.0, self._clock() - since[job_id]) if job_id in since else 0.0

    def _note_unplaceable(self, jobs: Sequence[AllocatedJob], cluster: ClusterState) -> None:
        now, nodes = self._clock(), cluster.usable_nodes()
        found = find_unplaceable(jobs, nodes) | find_stranded(jobs, nodes) if nodes else set()
        self._unplaceable_since = {
            job_id: self._unplaceable_since.get(job_id, now) for job_id in found
        }

    def _apply_allocation(
        self, job: JobRow, admission: Admission, token: int, *, timeout_s: float
    ) -> JobRow | None:
        if self._lease.hold() != token:
            return None
        if admission.reason is not Reason.ADMITTED:
            self._writes.record_wait_reason(
                job, token, reason=admission.reason, message=admission.message
            )
            return None
        if not self._writes.admit(job, token, workers=admission.workers, timeout_s=timeout_s):
            return None
        return JobReads(self._database).get(job.id)
