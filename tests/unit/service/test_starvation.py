"""No job waits for ever: each one starts within a bound that follows from the jobs ahead of it.

While a job waits, one that is ahead of it, or that ran before, keeps it from starting: those that
start behind it take only what no job ahead can use. So it waits no longer than these run one after
the other. With pausing, a job may start on capacity that is then taken back from it, which takes
turns in which neither of the two trains.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from accordion_service.domain.capacity.bin_packing import count_fitting
from accordion_service.domain.capacity.queue import Admission, QueueRules
from accordion_service.domain.capacity.quotas import (
    Quota,
    QuotaTable,
    QuotaUsage,
    label_account,
    user_account,
)
from accordion_service.domain.capacity.resources import Resources, worker_resources
from tests.unit.service.test_backfill import NAMED_NODES
from tests.unit.service.test_day_of_jobs import (
    HIGHEST,
    LOWEST,
    TURN_MIN,
    Day,
    SimulatedJob,
    ageing_min,
    longest_run,
)
from tests.unit.service.test_queue import ASKED, asked

POINTS_PER_HOUR = 240
"""Ageing: the lowest priority is ahead of a new job of the highest one after 15 minutes."""
ROUNDS, ROUND_MIN = 24, 2 * TURN_MIN
LIMIT_MIN = 7 * 24 * 60
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


def run_all(
    jobs: list[SimulatedJob],
    nodes: list[Resources],
    rules: QueueRules = NO_PAUSES,
    kind: type[Day] = OneByOne,
) -> Day:
    """Turn until every job that the cluster can hold has ended."""
    startable = [replace(job, placed=[]) for job in jobs if can_start(job, nodes, rules)]
    day = kind(startable, nodes, rules)
    while day.later or day.waiting or day.running:
        day.turn()
        day.check()
        assert day.minute < LIMIT_MIN, "a job never ends"
    return day


def can_start(job: SimulatedJob, nodes: list[Resources], rules: QueueRules) -> bool:
    fits = count_fitting(worker_resources(job.request), nodes, ()) >= job.request.min
    return fits and not QuotaUsage(rules.quotas).list_exhausted(job.accounts, job.request)


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
            latest = latest_start(job, jobs, day, closed=job.submitted_min + ageing_min(job))
            assert day.started[job.id] <= latest


def test_ageing_is_what_starts_a_job_behind_a_stream_of_more_important_ones() -> None:
    nodes, important = [Resources(cpus=2.0, gpus=0.0, node="n")], job_of(2, ROUND_MIN, HIGHEST)
    started = {}
    for points in (0.0, POINTS_PER_HOUR):
        jobs = repeat([important, replace(important, priority=LOWEST)], points)
        started[points] = run_all(jobs, nodes).started["1-0"]
    last = (ROUNDS - 1) * ROUND_MIN
    assert started[POINTS_PER_HOUR] < last < started[0.0]


ADA, TEAM = user_account("ada"), label_account("team", "a")
LIMITS = st.builds(
    Quota,
    jobs=st.sampled_from([None, 1, 2]),
    workers=st.sampled_from([None, 2, 4]),
    gpus=st.sampled_from([None, 1.0]),
)
PAUSING = st.builds(
    lambda ada, team: QueueRules(quotas=QuotaTable(quotas={ADA: ada, TEAM: team}), may_pause=True),
    LIMITS,
    LIMITS,
)
CROWD_WITH_ACCOUNTS = st.lists(
    st.builds(
        SimulatedJob,
        id=st.just(""),
        request=st.builds(
            lambda least, more, cpus, gpus: asked(least, least + more, cpus, gpus),
            st.integers(1, 4),
            st.integers(0, 4),
            st.sampled_from([1.0, 2.0]),
            st.sampled_from([0.0, 1.0]),
        ),
        priority=st.sampled_from([LOWEST, 50, HIGHEST]),
        accounts=st.sampled_from([(), (ADA,), (TEAM,), (ADA, TEAM)]),
        submitted_min=st.just(0.0),
        left=st.integers(1, 16).map(float),
    ),
    min_size=1,
    max_size=4,
)
FEW_NODES = st.lists(
    st.builds(
        Resources, cpus=st.sampled_from([2.0, 4.0, 8.0]), gpus=st.sampled_from([0.0, 1.0, 4.0])
    ),
    min_size=1,
    max_size=3,
).map(lambda nodes: [replace(node, node=f"n{number}") for number, node in enumerate(nodes)])


def test_a_job_with_two_quotas_starts_among_jobs_that_use_up_one_of_them_each() -> None:
    """One of the two quotas is always in use, by jobs that were submitted later."""
    quotas = QuotaTable(quotas={ADA: Quota(jobs=1), TEAM: Quota(jobs=1)})
    one = replace(job_of(1, 2 * TURN_MIN), points_per_hour=0.0)
    jobs = [
        replace(
            one,
            id=f"{number}",
            accounts=((ADA, TEAM)[number % 2],),
            submitted_min=TURN_MIN * number + 1.0,
        )
        for number in range(ROUNDS)
    ]
    jobs.insert(1, replace(one, id="both", accounts=(ADA, TEAM), submitted_min=1.0))
    day = run_all(jobs, [Resources(cpus=4.0, gpus=0.0, node="n")], QueueRules(quotas=quotas), Day)
    latest = latest_start(jobs[1], jobs, day, closed=1.0)
    assert day.started["both"] <= latest < max(day.started.values())


@settings(max_examples=40)
@given(CROWD_WITH_ACCOUNTS, FEW_NODES, PAUSING)
@example(
    [job_of(2, 18.0), job_of(2, 3.0, HIGHEST)],
    [Resources(cpus=2.0, gpus=0.0, node="n0")],
    QueueRules(may_pause=True),
)
def test_with_quotas_and_pauses_every_job_ends_within_a_bound_of_its_priority(
    crowd: list[SimulatedJob], nodes: list[Resources], rules: QueueRules
) -> None:
    """Jobs grow here, and several start at once: these are the plans as the scheduler gets them."""
    jobs = repeat(crowd, POINTS_PER_HOUR)
    day = run_all(jobs, nodes, rules, Day)
    for job in jobs:
        if job.id in day.ended:
            latest = latest_start(job, jobs, day, closed=job.submitted_min + ageing_min(job))
            pauses = [at for at, _ in day.pauses if job.submitted_min <= at <= day.ended[job.id]]
            assert day.ended[job.id] <= latest + longest_run(job) + 2 * TURN_MIN * len(pauses)
            ahead = [one for one in jobs if one.rank >= job.rank and one.id != job.id]
            starts_ahead = sum(day.starts[one.id] for one in ahead)
            assert day.starts[job.id] <= 1 + starts_ahead, "it was paused, and nobody started"
