"""A simulated working day (six hours, 2,500 jobs of a team), and half an hour with more of them
than the cluster can run: laws that hold whenever the scheduler looks.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.bin_packing import FreeCapacity, Packing, fits_beside
from accordion_service.domain.capacity.queue import (
    Admission,
    AllocatedJob,
    PendingJob,
    QueueRules,
    plan_queue,
)
from accordion_service.domain.capacity.quota_reservations import measure_usage
from accordion_service.domain.capacity.quotas import Quota, QuotaTable, label_account, user_account
from accordion_service.domain.capacity.resources import ResourceRequest, Resources, worker_resources
from accordion_service.domain.jobs.statuses import Reason

JOBS, TURN_MIN, DAY_MIN = 2_500, 3, 6 * 60
NODES = [Resources(cpus=16, gpus=4 * (n % 2), node=f"node-{n}") for n in range(8)]
POINTS_PER_HOUR, LOWEST, HIGHEST = 20, 20, 80
USED = 0.8
"""Share of the CPUs that trains at least while jobs wait; the rest of some nodes is too small."""
TABLE = QuotaTable(
    quotas={
        user_account("user-0"): Quota(workers=8),
        user_account("*"): Quota(jobs=12),
        label_account("team", "a"): Quota(gpus=6),
    }
)
TEAM_RULES = QueueRules(quotas=TABLE, may_pause=True)


@dataclass(kw_only=True)
class SimulatedJob:
    """A job and what is left of it."""

    id: str
    request: ResourceRequest
    priority: int
    accounts: tuple[str, ...]
    submitted_min: float
    left: float
    """Minutes of one worker until it ends."""
    placed: list[str] = field(default_factory=list)
    """Nodes of its workers; empty while it waits."""
    leaving: bool = False
    """Whether it saves, to be paused with the next turn."""
    points_per_hour: float = POINTS_PER_HOUR

    @property
    def rank(self) -> float:
        return self.priority - self.submitted_min / 60 * self.points_per_hour

    def pending(self) -> PendingJob:
        return PendingJob(
            id=self.id,
            request=self.request,
            priority=self.priority,
            rank=self.rank,
            accounts=self.accounts,
        )

    def allocated(self) -> AllocatedJob:
        held = len(self.placed)
        return AllocatedJob(
            id=self.id,
            request=replace(self.request, min=held, max=held) if self.leaving else self.request,
            allocated_workers=held,
            placed=tuple(self.placed),
            leaving=self.leaving,
            priority=self.priority,
            rank=self.rank,
            accounts=self.accounts,
        )


def submit_jobs(seed: int, count: int, minutes: float) -> list[SimulatedJob]:
    """Jobs, by time of submission: many small ones, and a few wide or with GPUs."""
    draw = random.Random(seed)
    times = sorted(draw.uniform(0, minutes) for _ in range(count))
    return [submit_job(draw, number, minute) for number, minute in enumerate(times)]


def submit_job(draw: random.Random, number: int, minute: float) -> SimulatedJob:
    on_gpus = draw.random() < 0.05
    least = draw.choices([1, 2, 4, 1 if on_gpus else 8], [70, 20, 8, 2])[0]
    labels = {"team": draw.choice("abc")}
    return SimulatedJob(
        id=f"job-{number}",
        request=ResourceRequest(
            min=least,
            max=least * draw.choice([1, 2, 4]),
            cpus=draw.choices([1, 2, 4], [80, 15, 5])[0],
            gpus=1 if on_gpus else 0,
        ),
        priority=draw.choices([20, 50, 80], [20, 70, 10])[0],
        accounts=TABLE.list_accounts(f"user-{draw.randrange(20)}", labels),
        submitted_min=minute,
        left=draw.expovariate(1 / (4 if on_gpus else 5)) * least,
    )


class Day:
    """The queue and the cluster while time goes on."""

    def __init__(
        self,
        jobs: list[SimulatedJob],
        nodes: list[Resources] = NODES,
        rules: QueueRules = TEAM_RULES,
    ) -> None:
        self.nodes, self.rules = nodes, rules
        self.minute = 0.0
        self.later = jobs[::-1]
        """Jobs that are not submitted yet, the next one last."""
        self.waiting: list[SimulatedJob] = []
        self.running: list[SimulatedJob] = []
        self.started: dict[str, float] = {}
        """Minute of the first start of each job."""
        self.ended: dict[str, float] = {}
        """Minute of the end of each job."""
        self.starts: Counter[str] = Counter()
        """How often each job started: again after each pause."""
        self.waited_min: Counter[str] = Counter()
        """Minutes that each job waited, paused ones included."""
        self.pauses: list[tuple[float, str]] = []
        """When which job was told to pause."""
        self.num_started_behind = 0

    def turn(self) -> None:
        self.minute += TURN_MIN
        for job in self.running:
            job.left -= TURN_MIN * len(job.placed)
        self.ended |= {job.id: self.minute for job in self.running if job.left <= 0}
        self.running = [job for job in self.running if job.left > 0]
        for job in self.running:
            if job.leaving:
                job.leaving, job.placed = False, []
                self.waiting.append(job)
        self.running = [job for job in self.running if job.placed]
        while self.later and self.later[-1].submitted_min <= self.minute:
            self.waiting.append(self.later.pop())
        self.waiting.sort(key=lambda job: -job.rank)
        self.admit()
        if self.waiting:
            self.admit()  # beside jobs whose nodes are known by now
        self.reallocate()
        self.waited_min.update({job.id: TURN_MIN for job in self.waiting})

    def admit(self) -> None:
        admissions = self.plan_admissions()
        admitted = [job for job in self.waiting if admissions[job.id].workers]
        for job in self.waiting:
            least, workers = job.request.min, admissions[job.id].workers
            assert workers == 0 or least <= workers <= job.request.max
        self.place({job.id: admissions[job.id].workers for job in admitted}, admitted)
        reasons = [admissions[job.id].reason for job in self.waiting]
        if Reason.WAITING_FOR_ROOM in reasons:
            head = reasons.index(Reason.WAITING_FOR_ROOM)
            self.num_started_behind += reasons[head:].count(Reason.ADMITTED)
            if not admitted:
                self.check_head(self.waiting[head])
        self.waiting = [job for job in self.waiting if not job.placed]
        self.running += admitted
        self.started = {job.id: self.minute for job in admitted} | self.started
        self.starts.update(job.id for job in admitted)

    def plan_admissions(self) -> dict[str, Admission]:
        before = [job.allocated() for job in self.running]
        pending = [job.pending() for job in self.waiting]
        return plan_queue(pending, self.nodes, before, rules=self.rules)

    def check_head(self, head: SimulatedJob) -> None:
        """The first job that waits for capacity could not start instead."""
        taken = [size for job in self.running for size in job.allocated().list_workers()]
        assert not fits_beside(head.request, self.nodes, taken)

    def reallocate(self) -> None:
        self.running.sort(key=lambda job: (-job.priority, job.submitted_min))
        held = [job.allocated() for job in self.running]
        pending = [job.pending() for job in self.waiting]
        changes = plan_allocations(held, pending, self.nodes, rules=self.rules)
        for job in self.running:
            workers = changes[job.id].workers if job.id in changes else len(job.placed)
            job.leaving = job.leaving or workers == 0
            del job.placed[workers or len(job.placed) :]
        growing = [job for job in self.running if job.id in changes and not job.leaving]
        self.grow({job.id: changes[job.id].workers - len(job.placed) for job in growing}, growing)
        self.pauses += [(self.minute, id_) for id_, one in changes.items() if one.workers == 0]

    def grow(self, workers: dict[str, int], jobs: list[SimulatedJob]) -> None:
        self.place(workers, jobs)

    def place(self, workers: dict[str, int], jobs: list[SimulatedJob]) -> None:
        """Place more workers of jobs; every one that the plan counted finds a node."""
        placed = [*self.running, *(job for job in jobs if job not in self.running)]
        present = [size for job in placed for size in job.allocated().list_workers()]
        free = Packing(present, self.nodes).free
        sizes = [
            (worker_resources(job.request), job) for job in jobs for _ in range(workers[job.id])
        ]
        sizes.sort(key=lambda one: (one[0].gpus, one[0].cpus), reverse=True)
        for size, job in sizes:
            job.placed.append(self.nodes[choose_node(size, free)].node)

    def check(self) -> None:
        """Nobody is below the minimum, nothing is taken twice, and no quota is exceeded."""
        held = [job.allocated() for job in self.running]
        packing = Packing([size for job in held for size in job.list_workers()], self.nodes)
        assert all(min(node.cpus, node.gpus) >= 0 for node in packing.free)
        assert all(job.request.min <= job.allocated_workers <= job.request.max for job in held)
        usage = measure_usage(held, self.rules.quotas)
        for account in {account for job in held for account in job.accounts}:
            used, quota = usage.find_usage(account), self.rules.quotas.find_quota(account)
            pairs = [
                (used.jobs, quota.jobs),
                (used.workers, quota.workers),
                (used.gpus, quota.gpus),
            ]
            assert all(limit is None or number <= limit for number, limit in pairs), account


def choose_node(size: Resources, free: list[FreeCapacity]) -> int:
    fits = [index for index, node in enumerate(free) if node.fits(size)]
    assert fits, "the plan counted a worker that no node holds"
    index = min(fits, key=lambda index: (free[index].gpus, free[index].cpus))
    free[index].take(size)
    return index


def longest_run(job: SimulatedJob) -> float:
    """Minutes that it trains with its fewest workers, in whole turns."""
    return math.ceil(job.left / job.request.min / TURN_MIN) * TURN_MIN


def run(jobs: list[SimulatedJob]) -> Day:
    day = Day([replace(job, placed=[]) for job in jobs])
    while day.later or day.waiting or day.running:
        day.turn()
        day.check()
        assert day.minute < 2 * DAY_MIN, "a job starves"
    assert len(day.started) == len(jobs)
    return day


def ageing_min(job: SimulatedJob) -> float:
    """Minutes after which no new job goes ahead of it."""
    return (HIGHEST - job.priority) / job.points_per_hour * 60


def test_a_job_of_a_day_waits_until_it_is_old_and_then_for_the_longest_run() -> None:
    jobs = submit_jobs(7, JOBS, DAY_MIN)
    longest_min = max(longest_run(job) for job in jobs)
    day = run(jobs)
    assert day.num_started_behind > 0
    assert 0 < len(day.pauses) < JOBS / 100, "no job is started and paused again and again"
    late = [job for job in jobs if day.waited_min[job.id] > ageing_min(job) + longest_min]
    assert late == []


@pytest.mark.parametrize("seed", [8, 10])
def test_ageing_bounds_each_wait_among_more_important_jobs_than_the_cluster_can_run(
    seed: int,
) -> None:
    """A job starts before work that was submitted when it was old already."""
    jobs = [
        replace(job, priority=HIGHEST if number % 10 else LOWEST, points_per_hour=240)
        for number, job in enumerate(submit_jobs(seed, 600, 30.0))
        if user_account("user-0") not in job.accounts  # its quota is what it waits for
    ]
    longest_min, cpus = max(longest_run(job) for job in jobs), sum(node.cpus for node in NODES)
    day = run(jobs)
    assert max(day.started.values()) > 60, "the queue is long"
    for job in jobs:
        closed = job.submitted_min + ageing_min(job)
        ahead = [other for other in jobs if other.submitted_min <= closed]
        work = sum(longest_run(one) * one.request.min * one.request.cpus for one in ahead)
        at_latest = max(closed, work / (USED * cpus)) + longest_min + TURN_MIN
        assert day.started[job.id] <= at_latest
