"""Finds the jobs whose end would give a pending job room; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accordion_service.domain.capacity.bin_packing import FreeCapacity
from accordion_service.domain.capacity.queue import AllocatedJob
from accordion_service.domain.capacity.resources import ResourceRequest, Resources, worker_resources


def list_holders(
    request: ResourceRequest,
    nodes: Sequence[Resources],
    allocated: Sequence[AllocatedJob],
    *,
    foreign: Sequence[Resources],
) -> tuple[str, ...]:
    """List the jobs that hold what a pending job lacks: a node has room for more of its workers
    when they end, alone or together with others. A worker whose node is not known may be on any.
    """
    worker = worker_resources(request)
    fitting = [node for node in nodes if FreeCapacity.of(node).count_fitting(worker)]
    held = [(job.id, size) for job in allocated for size in job.list_workers()]
    known = {node.node for node in nodes}
    found = {
        job_id
        for job_id, size in held
        if size.node not in known
        and any(FreeCapacity.of(node).fits(replace(size, node="")) for node in fitting)
    }
    for node in fitting:
        here: dict[str, list[Resources]] = {}
        for job_id, size in held:
            if size.node == node.node:
                here.setdefault(job_id, []).append(size)
        room = FreeCapacity.of(node)
        for size in [*foreign, *(size for sizes in here.values() for size in sizes)]:
            if size.node == node.node:
                room.take(size)
        found |= _UsedNode(worker=worker, room=room, held=here).list_helping()
    return tuple(job.id for job in allocated if job.id in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsedNode:
    """A node that is large enough for the workers of a pending job."""

    worker: Resources
    """Worker of the pending job."""
    room: FreeCapacity
    """What is free now."""
    held: Mapping[str, Sequence[Resources]]
    """Workers on the node by job id."""

    def list_helping(self) -> set[str]:
        """List the jobs whose end makes more workers fit, alone or once smaller ones have ended."""
        smallest_first = sorted(self.held, key=lambda job_id: _amounts_of(self.held[job_id]))
        return {job_id for job_id in self.held if self._helps(job_id, smallest_first)}

    def _helps(self, job_id: str, ending: Sequence[str]) -> bool:
        beside, without = _copy(self.room), _copy(self.room)
        _release(without, self.held[job_id])
        for other in ending:
            if without.count_fitting(self.worker) > beside.count_fitting(self.worker):
                return True
            if other != job_id:
                _release(beside, self.held[other])
                _release(without, self.held[other])
        return without.count_fitting(self.worker) > beside.count_fitting(self.worker)


def _copy(room: FreeCapacity) -> FreeCapacity:
    return replace(room, custom=dict(room.custom))


def _release(room: FreeCapacity, sizes: Sequence[Resources]) -> None:
    for size in sizes:
        room.take(size, -1)


def _amounts_of(sizes: Sequence[Resources]) -> tuple[float, float, float]:
    return (
        sum(size.gpus for size in sizes),
        sum(size.cpus for size in sizes),
        sum(size.memory for size in sizes),
    )
