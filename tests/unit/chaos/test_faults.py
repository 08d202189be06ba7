"""Which faults `make chaos` plants, and which it misses."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from tests.chaos.faults import FAULTS, SERVER_FAULTS, Faults
from tests.chaos.owners import LEAST_JOBS, NUM_OPENING, PLANS, WORKERS_PER_OWNER, draw_jobs


class Scripted(Faults):
    """Faults in a service that has only the given parts."""

    def __init__(self, *there: str, server: Any = None) -> None:
        super().__init__(cast("Any", None), server, None, random.Random(1), seconds=(0.0, 0.0))
        self.there = set(there)

    def _plant(self, fault: str) -> bool:
        return fault in self.there


def test_all_kinds_of_faults_are_planted_equally_often() -> None:
    faults = Scripted(*FAULTS, server="a server")
    for _ in range(2 * len(FAULTS)):
        faults.plant_if_due()
    assert faults.planted == dict.fromkeys(FAULTS, 2)
    assert faults.find_missing() == []


def test_a_fault_that_finds_nothing_delays_no_other_and_is_missed() -> None:
    faults = Scripted("api", "scheduler", "actor", "supervisor")
    for _ in range(8):
        faults.plant_if_due()
    assert faults.planted == {"api": 2, "scheduler": 2, "actor": 2, "supervisor": 2, "worker": 0}
    assert faults.find_missing() == ["no worker was killed"]
    faults.there.add("worker")
    faults.plant_if_due()
    assert faults.find_missing() == []


def test_without_a_database_server_its_faults_are_named_and_not_missed() -> None:
    faults = Scripted()
    missing = {sentence.split()[1] for sentence in faults.find_missing()}
    assert missing == set(FAULTS) - SERVER_FAULTS
    assert faults.describe().endswith("; impossible with SQLite: connection, database")


@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_run_has_all_plans_and_opens_with_more_jobs_than_a_quota(seed: int) -> None:
    jobs = draw_jobs(random.Random(seed), LEAST_JOBS)
    opening, others = jobs[:NUM_OPENING], jobs[NUM_OPENING:]
    assert {job.plan for job in jobs} == set(PLANS)
    assert len({job.owner for job in opening}) == 1
    assert len(opening) > WORKERS_PER_OWNER
    assert max(job.priority for job in opening) < min(job.priority for job in others)
