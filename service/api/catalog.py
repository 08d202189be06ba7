"""Routes that list tasks, methods and policies, and show the cluster and the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from accordion.compressors import COMPRESSORS
from accordion.options import options_schema
from accordion.policies import POLICIES
from service.api.callers import CallerDep, require_scope
from service.api.cluster_schemas import ClusterView, Named, NamedList, QueueEntry, QueueView
from service.api.deps import NO_QUERY, RepositoryDep, StateDep
from service.api.problems import describe_problems
from service.api.views import cluster_view
from service.domain.access import Caller, Scope
from service.domain.cluster_snapshot import read_cluster_snapshot
from service.domain.wait_causes import WaitCause, explain_queue
from service.domain.waiting_message import format_waiting_message
from service.queue_inputs import QueueReader
from service.store.models import JobRow
from service.store.repository import Repository
from workers.tasks import SCRIPT, SCRIPT_ROW, TASKS

_Fields = dict[str, Any]
router = APIRouter(
    tags=["catalog"],
    dependencies=[require_scope(Scope.READ), NO_QUERY],
    responses=describe_problems(),
)


@router.get("/tasks")
def get_tasks() -> NamedList:
    """List the built-in tasks, each with the JSON schema of its options.

    A spec may also name your own class as `module:Class`, with any options.
    """
    rows = {**TASKS, SCRIPT: SCRIPT_ROW}.items()
    return NamedList(
        items=[
            Named(name=name, summary=row.summary, options=options_schema(row.options))
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
def get_cluster(repository: RepositoryDep) -> ClusterView:
    """Show the cluster as the scheduler last saw it, and what the jobs reserve."""
    return cluster_view(repository.cluster(), repository.unfinished())


@router.get("/queue")
def get_queue(state: StateDep, caller: CallerDep) -> QueueView:
    """List the waiting jobs in the order in which they will start, each with its reason, the jobs
    that it waits for, and what would help.

    Without the scope `read:all`, the names of other users' jobs are not shown.
    """
    reader = QueueReader(state.repository, state.settings)
    rows = reader.read_queue()
    first = state.repository.first_without_capacity(rows)
    causes = _explain_queue(reader, state.repository, rows)
    entries = [_describe_entry(row, first, caller) for row in rows]
    return QueueView(
        items=[
            QueueEntry.model_validate(
                {"position": position, **entry, **asdict(causes.get(entry["id"], WaitCause()))}
            )
            for position, entry in enumerate(entries)
        ]
    )


def _explain_queue(
    reader: QueueReader, repository: Repository, rows: Sequence[JobRow]
) -> dict[str, WaitCause]:
    if not rows:
        return {}
    cluster = repository.cluster()
    nodes, foreign = read_cluster_snapshot(cluster.nodes if cluster else [])
    allocated = reader.list_allocated(repository.allocated())
    pending = reader.list_pending(rows)
    return explain_queue(pending, nodes, allocated, foreign=foreign, rules=reader.rules)


def _describe_entry(row: JobRow, first_without_capacity: str | None, caller: Caller) -> _Fields:
    names = ("id", "owner", "priority", "reason", "created_at")
    return {
        **{name: getattr(row, name) for name in names},
        "name": row.name if caller.may_see(row.owner) else None,
        "message": format_waiting_message(row.message, first_without_capacity),
    }
