"""How many workers each job may hold now: pure, from what jobs hold, what waits, and the nodes.

    every group has room                    -> nobody shrinks
    no waiting job could ever be placed     -> jobs grow in queue order while every group has room
    a node is gone or being drained         -> jobs shrink in reverse queue order, never below their
                                               minimum, and only where the room helps a group
                                               without room

Room that somebody waits for is never grown into, however little of it he can use now: growing would
be passing him. A grant that follows from a plan is not changed by the next plan over the same
cluster and queue, so nothing flaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.domain.jobs import LEAVING, Status
from service.domain.queue import (
    Asked,
    Size,
    Waiting,
    fitting,
    num_homeless,
    size_of,
    sizes_of,
    sizes_on,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job that holds workers; `asked` is between how many its number may be changed now."""

    id: str
    asked: Asked
    granted: int
    placed: tuple[str, ...] = ()
    """Nodes of its placed processes, in the order in which they are kept."""
    starting: bool = False
    """Whether the job has not trained since it was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """How many workers a job may hold from now on, and why that changed."""

    workers: int
    why: str


def holding(
    job_id: str, status: Status, asked: Asked, *, granted: int, placed: Sequence[str] = ()
) -> Holding:
    """A job as the plan sees it: only one that trains grows, and one that pauses or stops is left
    as it is.
    """
    if status in LEAVING:
        asked = replace(asked, min=granted, max=granted)
    elif status is Status.STARTING:
        asked = replace(asked, max=min(asked.max, granted))
    starting = status is Status.STARTING
    return Holding(id=job_id, asked=asked, granted=granted, placed=tuple(placed), starting=starting)


def unplaceable(jobs: Sequence[Holding], nodes: Sequence[Size]) -> set[str]:
    """Starting jobs whose minimum does not fit beside the placed processes: admitted in error."""
    settled = [size for job in jobs for size in sizes_of(job.asked, len(job.placed), job.placed)]
    homeless = num_homeless(settled, nodes)
    missing = {
        job.id: min(job.asked.min, job.granted) - len(job.placed) for job in jobs if job.starting
    }
    return {
        job.id
        for job in jobs
        if missing.get(job.id, 0) > 0
        and num_homeless([*settled, *sizes_of(job.asked, missing[job.id])], nodes) > homeless
    }


def plan_grants(
    jobs: Sequence[Holding],
    waiting: Sequence[Waiting],
    nodes: Sequence[Size],
    *,
    foreign: Sequence[Size] = (),
) -> dict[str, Grant]:
    """What changes, by job id; `jobs` in the order of priority and age, `nodes` those that take
    workers.

    `foreign` is what other programs use of each node: no job grows into it, and none shrinks
    because of it.

    A cluster that shows no node at all says nothing about room, and changes only what people asked
    for.
    """
    plan = _Plan(jobs, nodes, foreign)
    if nodes and not plan.has_room():
        # If only processes of starting jobs do not fit, jobs that train keep their workers.
        only_starts = _Plan([_without_unplaced(job) for job in jobs], nodes).has_room()
        shrinkable = [job for job in jobs if job.starting or not only_starts]
        for job in reversed(shrinkable):
            plan.shrink(job)
        for job in shrinkable:
            plan.give_back(job)
    elif nodes and not _could_start(waiting, nodes):
        for job in jobs:
            plan.grow(job)
    return plan.changes()


def _could_start(waiting: Sequence[Waiting], nodes: Sequence[Size]) -> bool:
    """Whether one of the jobs would fit into an empty cluster."""
    capacity = {size: fitting(size, nodes, ()) for size in {size_of(job.asked) for job in waiting}}
    return any(capacity[size_of(job.asked)] >= job.asked.min for job in waiting)


def _without_unplaced(job: Holding) -> Holding:
    """Reduce a starting job to its placed processes."""
    return (
        replace(job, granted=len(job.placed))
        if job.starting and len(job.placed) < job.granted
        else job
    )


class _Plan:
    """Grants as they are found, one job after the other; a minimum that is above the grant is grown
    to, or waits.
    """

    def __init__(
        self, jobs: Sequence[Holding], nodes: Sequence[Size], foreign: Sequence[Size] = ()
    ) -> None:
        self._jobs = jobs
        self._foreign = sizes_on(nodes, foreign)
        self._nodes = nodes
        self.grants = {
            job.id: Grant(
                workers=min(job.granted, job.asked.max), why=f"people allow at most {job.asked.max}"
            )
            for job in jobs
        }
        self._room_by_size: dict[Size, int] = {}
        """Number of additional workers that fit, by size; cached for all jobs of that size."""

    def changes(self) -> dict[str, Grant]:
        """Grants that differ from the current number of workers."""
        return {
            job.id: self.grants[job.id]
            for job in self._jobs
            if self.grants[job.id].workers != job.granted
        }

    def has_room(self) -> bool:
        """Whether every worker has a place."""
        return self._homeless() == 0

    def shrink(self, job: Holding) -> None:
        """Take as few as give a place to as many workers as taking all above the minimum would."""
        before = self.grants[job.id]
        if before.workers <= job.asked.min:
            return
        best = self._homeless_with(job, job.asked.min)
        enough, too_many = job.asked.min, before.workers + 1
        while too_many - enough > 1:
            tried = (enough + too_many) // 2
            enough, too_many = (
                (tried, too_many) if self._homeless_with(job, tried) <= best else (enough, tried)
            )
        why = "the nodes that take workers have no room for more"
        self.grants[job.id] = before if enough == before.workers else Grant(workers=enough, why=why)

    def give_back(self, job: Holding) -> None:
        """What was taken before more was taken from a larger job, and is of no use to anybody after
        that.
        """
        kept, homeless = self.grants[job.id], self._homeless()
        for workers in range(min(job.granted, job.asked.max), kept.workers, -1):
            if self._homeless_with(job, workers) <= homeless:
                return
        self.grants[job.id] = kept

    def grow(self, job: Holding) -> None:
        """Fill what is left; packed anew, more workers may need more room than counting what is
        left says.
        """
        kept = self.grants[job.id]
        wanted = job.asked.max - kept.workers
        room = min(wanted, self._room(size_of(job.asked))) if wanted > 0 else 0
        for more in range(room, 0, -1):
            self.grants[job.id] = Grant(
                workers=kept.workers + more, why="there is room and nobody waits for it"
            )
            if self.has_room():
                self._room_by_size.clear()
                return
        self.grants[job.id] = kept
        if room > 0:
            self._room_by_size[size_of(job.asked)] = 0

    def _room(self, size: Size) -> int:
        if size not in self._room_by_size:
            self._room_by_size[size] = fitting(size, self._nodes, [*self._taken(), *self._foreign])
        return self._room_by_size[size]

    def _homeless_with(self, job: Holding, workers: int) -> int:
        self.grants[job.id] = replace(self.grants[job.id], workers=workers)
        return self._homeless()

    def _homeless(self) -> int:
        return num_homeless(self._taken(), self._nodes)

    def _taken(self) -> list[Size]:
        return [
            size
            for job in self._jobs
            for size in sizes_of(job.asked, self.grants[job.id].workers, job.placed)
        ]
