"""Routes that list tasks, methods and policies, and show the cluster and the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from accordion.base.options import options_schema
from accordion.compressors import COMPRESSORS
from accordion.policies import POLICIES
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.domain.capacity.autoscaling import read_autoscaler_record
from accordion_service.domain.capacity.cluster_snapshot import (
    read_avoided,
    read_cluster_snapshot,
    read_placements,
)
from accordion_service.domain.capacity.wait_causes import WAITS_FOR_SECRET, WaitCause, explain_queue
from accordion_service.domain.capacity.waiting_message import format_waiting_message
from accordion_service.domain.jobs.statuses import Reason
from accordion_service.job_inputs.queue import QueueReader, is_contending
from accordion_service.schemas.cluster import (
    ClusterView,
    Named,
    NamedList,
    QueueEntry,
    QueueView,
    TaskList,
    TaskView,
)
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import resource_request
from accordion_service.views.jobs import cluster_view
from accordion_workers.spec.types import MAX_PRIORITY
from accordion_workers.tasks import SCRIPT, SCRIPT_ROW, TASKS

_SHOWN_TO_ALL = ("id", "owner", "priority", "reason", "created_at")
"""Fields of a queued job that everyone sees."""
router = APIRouter(
    tags=["catalog"],
    dependencies=[require_scope(Scope.READ), NO_QUERY],
    responses=describe_problems(),
)


@router.get("/tasks")
def get_tasks() -> TaskList:
    """List the built-in tasks, each with the JSON schema of its options and its metrics.

    A spec may also name your own class as `module:Class`, with any options.
    """
    rows = {**TASKS, SCRIPT: SCRIPT_ROW}.items()
    return TaskList(
        items=[
            TaskView(
                name=name,
                summary=row.summary,
                options=options_schema(row.options),
                metrics=list(row.metrics),
            )
            for name, row in rows
        ]
    )


@router.get("/methods")
def get_methods() -> NamedList:
    """List the compression methods, each with the JSON schema of its options."""
    rows = COMPRESSORS.items()
    return NamedList(
        items=[
            Named(name=name, summary=row.summary, options=options_schema(row.options))
            for name, row in rows
        ]
    )


@router.get("/policies")
def get_policies() -> NamedList:
    """List the policies that choose the levels, each with the JSON schema of its options."""
    rows = POLICIES.items()
    return NamedList(
        items=[
            Named(name=name, summary=row.summary, options=options_schema(row.options))
            for name, row in rows
        ]
    )


@router.get("/cluster")
def get_cluster(state: StateDep) -> ClusterView:
    """Show the cluster as the scheduler last saw it, and what the jobs reserve."""
    return cluster_view(state.cluster.get(), state.jobs.unfinished())


@router.get("/queue")
def get_queue(state: StateDep, caller: CallerDep) -> QueueView:
    """List the waiting jobs in the order of the queue, each with its reason, the jobs that it waits
    for, what would help, and what was requested from the cluster's autoscaler. One may start before
    those ahead of it if it does not delay them. Jobs whose `start_at` has not come are listed last.

    Without the scope `read:all`, names, quotas, secrets and remedies of other users' jobs are not
    shown, nor the jobs that they wait for because of a quota; nor, for your own jobs, those of
    other users.
    """
    cluster, now = state.cluster.get(), state.clock()
    record = read_autoscaler_record(cluster.autoscaler if cluster else None)
    snapshot = cluster.nodes if cluster else []
    reader = QueueReader(
        state.database, state.settings, record.list_awaiting(now), avoided=read_avoided(snapshot)
    )
    later, rows = state.queue.scheduled(), reader.read_queue()
    first = state.queue.first_without_capacity(rows)
    allowed = Scope.WRITE_ALL in caller.scopes
    highest = MAX_PRIORITY if allowed else state.settings.max_priority
    allocated = state.queue.allocated() if rows else []
    causes = _explain_queue(reader, rows, allocated, snapshot=snapshot, max_priority=highest)
    owners = {row.id: row.owner for row in (*rows, *allocated)}
    items = []
    # One whose time has come meanwhile is in both.
    queued = {row.id for row in rows}
    listed = [*rows, *(row for row in later if row.id not in queued)]
    for position, row in enumerate(listed, start=1):
        cause = causes.get(row.id, WaitCause())
        fields = {"position": position, "waits_for": cause.waits_for, "remedies": cause.remedies}
        fields |= {name: getattr(row, name) for name in _SHOWN_TO_ALL}
        fields |= {"name": row.name, "message": format_waiting_message(row.message, first)}
        fields |= {"requested_at": record.requested_at.get(row.id)}
        fields |= {"autoscaler": record.describe(row.id, resource_request(row), now)}
        if not caller.may_see(row.owner):
            fields |= _hide_details(row, cause)
        elif cause.for_quota:
            fields["waits_for"] = [one for one in cause.waits_for if caller.may_see(owners[one])]
        items.append(QueueEntry.model_validate(fields))
    return QueueView(items=items)


def _explain_queue(
    reader: QueueReader,
    rows: Sequence[JobRow],
    allocated: Sequence[JobRow],
    *,
    snapshot: Sequence[Mapping[str, Any]],
    max_priority: int,
) -> dict[str, WaitCause]:
    if not rows:
        return {}
    nodes, foreign = read_cluster_snapshot(snapshot)
    placed = read_placements(snapshot)
    causes = explain_queue(
        reader.list_pending([row for row in rows if is_contending(row)]),
        nodes,
        reader.list_allocated(allocated, lambda row: placed.get(row.id)),
        foreign=foreign,
        rules=reader.rules,
        max_priority=max_priority,
    )
    return causes | {row.id: WAITS_FOR_SECRET for row in rows if not is_contending(row)}


def _hide_details(row: JobRow, cause: WaitCause) -> dict[str, Any]:
    """Return what is shown of a job that the caller may not see, in place of what tells its name,
    labels or secrets. The jobs that count towards the same quota would tell these.
    """
    hidden: dict[str, Any] = {"name": None, "remedies": ()}
    if cause.for_quota or row.reason == Reason.WAITING_FOR_QUOTA:
        hidden |= {"message": "waits for a quota", "waits_for": ()}
    elif row.reason == Reason.WAITING_FOR_SECRET:
        hidden |= {"message": "waits for a secret of its owner"}
    return hidden
