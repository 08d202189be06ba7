"""What a spec can name, and where jobs run: tasks, methods, policies, cluster, queue."""

from __future__ import annotations

from fastapi import APIRouter

from accordion.compressors import COMPRESSORS
from accordion.options import options_schema
from accordion.policies import POLICIES
from service.api.deps import NO_QUERY, RepositoryDep
from service.api.problems import problems
from service.api.schemas import ClusterView, Named, NamedList, QueueEntry, QueueView
from service.api.views import cluster_view
from workers.tasks import SCRIPT, SCRIPT_ROW, TASKS

router = APIRouter(tags=["catalog"], dependencies=[NO_QUERY], responses=problems())


@router.get("/tasks")
def get_tasks() -> NamedList:
    """What can be trained, with the JSON schema of each task's options.

    Besides these a spec may name a class of one's own as `module:Class`, with any options.
    """
    rows = {**TASKS, SCRIPT: SCRIPT_ROW}.items()
    return NamedList(
        items=[Named(name=name, summary=row.summary, options=options_schema(row.options)) for name, row in rows]
    )


@router.get("/methods")
def get_methods() -> NamedList:
    """How gradients can be compressed, with the JSON schema of each method's options."""
    rows = COMPRESSORS.items()
    return NamedList(
        items=[Named(name=name, summary=row.summary, options=options_schema(row.options)) for name, row in rows]
    )


@router.get("/policies")
def get_policies() -> NamedList:
    """Who can decide the levels, with the JSON schema of each policy's options."""
    rows = POLICIES.items()
    return NamedList(items=[Named(name=name, summary=row.summary, options=dict(row.schema)) for name, row in rows])


@router.get("/cluster")
def get_cluster(repository: RepositoryDep) -> ClusterView:
    """The cluster as the scheduler last saw it, and what our jobs reserve of it."""
    return cluster_view(repository.cluster(), repository.unfinished())


@router.get("/queue")
def get_queue(repository: RepositoryDep) -> QueueView:
    """Waiting jobs in the order in which they will start, each with the reason."""
    fields = ("id", "name", "priority", "reason", "message", "created_at")
    entries = [
        QueueEntry.model_validate({"position": position, **{name: getattr(row, name) for name in fields}})
        for position, row in enumerate(repository.queue())
    ]
    return QueueView(items=entries)
