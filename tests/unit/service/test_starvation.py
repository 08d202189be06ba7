"""No job waits for ever: each one starts within a bound that follows from the jobs ahead of it.

While a job waits, one that is ahead of it, or that ran before, keeps it from starting: those that
start behind it take only what no job ahead can use. So it waits no longer than these run one after
the other. Pausing is off here; `test_day_of_jobs.py` has it on.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.domain.bin_packing import count_fitting
from service.domain.queue import Admission, QueueRules
from service.domain.resources import Resources, worker_resources
from tests.unit.service.test_backfill import NAMED_NODES
from tests.unit.service.test_day_of_jobs import TURN_MIN, Day, SimulatedJob
from tests.unit.service.test_queue import ASKED, asked

LOWEST, HIGHEST = 20, 80
POINTS_PER_HOUR = 240
"""Ageing: the lowest priority is ahead of a new job of the highest one after 15 minutes."""
ROUNDS, ROUND_MIN = 24, 2 * TURN_MIN
NO_PAUSES = QueueRules(may_pause=False)
CROWD = st.lists(
    st.builds(
        SimulatedJob,
        id=st.just(""),
        request=ASKED,
        priority=st.sampled_from([LOWEST, 50, HIGHEST]),
        accounts=st.just(()),
        submitted_min=st.just(0.0),
        left=st.integers(1, 16).map(float),
    ),
    min_size=1,
    max_size=3,
)
"""Jobs that are submitted again and again, so that the cluster may have more than it can run."""


class OneByOne(Day):
    """A day on which the node of each worker is known before the next job starts: two jobs that
    start at once on nodes of several kinds may not find the places that were counted for them.
    Jobs start with any number of workers, and do not grow.
    """

    def admit(self) -> None:
        waiting = -1
        while len(self.waiting) != waiting:
            waiting = len(self.waiting)
            super().admit()

    def plan_admissions(self) -> dict[str, Admission]:
        found = super().plan_admissions()
        first = next((job.id for job in self.waiting if found[job.id].workers), "")
        return {
            id_: replace(one, workers=one.workers if id_ == first else 0)
            for id_, one in found.items()
        }

    def grow(self, workers: dict[str, int], jobs: list[SimulatedJob]) -> None:
        pass


def repeat(crowd: list[SimulatedJob], points_per_hour: float) -> list[SimulatedJob]:
    return [
        replace(
            job,
            id=f"{number}-{round_}",
            submitted_min=float(round_ * ROUND_MIN),
            points_per_hour=points_per_hour,
            placed=[],
        )
        for round_ in range(ROUNDS)
        for number, job in enumerate(crowd)
    ]


def run_all(jobs: list[SimulatedJob], nodes: list[Resources]) -> Day:
    """Turn until every job that the cluster can hold has ended."""
    startable = [replace(job, placed=[]) for job in jobs if can_start(job, nodes)]
    day = OneByOne(startable, nodes, NO_PAUSES)
    while day.later or day.waiting or day.running:
        day.turn()
        day.check()
    return day


def can_start(job: SimulatedJob, nodes: list[Resources]) -> bool:
    return count_fitting(worker_resources(job.request), nodes, ()) >= job.request.min


def longest_run(job: SimulatedJob) -> float:
    """Minutes that it trains with its fewest workers, in whole turns."""
    return math.ceil(job.left / job.request.min / TURN_MIN) * TURN_MIN


def latest_start(job: SimulatedJob, jobs: list[SimulatedJob], day: Day, *, closed: float) -> float:
    """Minute in which a job starts at the latest.

    Args:
        job: one of the jobs.
        jobs: all jobs.
        day: what happened.
        closed: minute after which no job is submitted that goes ahead of this one.
    """
    number = jobs.index(job)
    ahead = [
        other
        for index, other in enumerate(jobs)
        if index != number
        and (other.submitted_min <= closed if closed > job.submitted_min else index < number)
        and day.ended.get(other.id, 0.0) > job.submitted_min
    ]
    return closed + TURN_MIN + sum(longest_run(other) for other in ahead)


def job_of(workers: int, minutes: float, priority: int = LOWEST) -> SimulatedJob:
    """A job that trains for so many minutes."""
    return SimulatedJob(
        id="",
        request=asked(workers, workers),
        priority=priority,
        accounts=(),
        submitted_min=0.0,
        left=minutes * workers,
    )


WIDE_AND_NARROW = [job_of(4, 3.0), job_of(1, 12.0)]
"""Jobs of which a wide one never finds all CPUs free if each narrow one may start."""


@settings(max_examples=30)
@given(CROWD, NAMED_NODES, st.sampled_from([LOWEST, HIGHEST]))
@example(WIDE_AND_NARROW, [Resources(cpus=4.0, gpus=0.0, node="n0")], LOWEST)
def test_without_ageing_no_job_of_the_same_priority_is_overtaken_for_ever(
    crowd: list[SimulatedJob], nodes: list[Resources], priority: int
) -> None:
    jobs = repeat([replace(job, priority=priority) for job in crowd], points_per_hour=0.0)
    day = run_all(jobs, nodes)
    for job in jobs:
        if job.id in day.started:
            latest = latest_start(job, jobs, day, closed=job.submitted_min)
            assert day.started[job.id] <= latest


@settings(max_examples=30)
@given(CROWD, NAMED_NODES)
@example(WIDE_AND_NARROW, [Resources(cpus=4.0, gpus=0.0, node="n0")])
@example([job_of(2, 6.0, HIGHEST), job_of(2, 3.0)], [Resources(cpus=2.0, gpus=0.0, node="n0")])
def test_with_ageing_every_job_starts_within_a_bound_of_its_priority(
    crowd: list[SimulatedJob], nodes: list[Resources]
) -> None:
    jobs = repeat(crowd, POINTS_PER_HOUR)
    day = run_all(jobs, nodes)
    for job in jobs:
        if job.id in day.started:
            ageing_min = (HIGHEST - job.priority) / POINTS_PER_HOUR * 60
            latest = latest_start(job, jobs, day, closed=job.submitted_min + ageing_min)
            assert day.started[job.id] <= latest


def test_ageing_is_what_starts_a_job_behind_a_stream_of_more_important_ones() -> None:
    nodes, important = [Resources(cpus=2.0, gpus=0.0, node="n")], job_of(2, ROUND_MIN, HIGHEST)
    started = {}
    for points in (0.0, POINTS_PER_HOUR):
        jobs = repeat([important, replace(important, priority=LOWEST)], points)
        started[points] = run_all(jobs, nodes).started["1-0"]
    last = (ROUNDS - 1) * ROUND_MIN
    assert started[POINTS_PER_HOUR] < last < started[0.0]
