"""What each filter of a list finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import insert

from service.store.database import Database
from service.store.job_list import JobFilter
from service.store.models import JobRow
from service.store.repository import Repository

JOBS = 200
COMMON: dict[str, Any] = {
    "name": "sweep-1",
    "status": "SUCCEEDED",
    "reason": "COMPLETED",
    "desired": "RUN",
    "priority": 50,
    "task": "digits-mlp",
    "method": "powersgd",
    "policy": "two_level",
    "owner": "bob",
    "spec": {},
    "labels": {},
    "min_workers": 1,
    "max_workers": 2,
}
RARE: dict[str, Any] = {
    "name": "needle-1",
    "status": "RUNNING",
    "reason": "NO_STEPS",
    "desired": "PAUSE",
    "priority": 99,
    "workers": 7,
    "task": "cifar-resnet18",
    "method": "topk",
    "policy": "fixed",
    "cloned_from": "c" * 36,
    "owner": "ada",
}
"""Values that only every seventh job has."""
FILTERS: list[tuple[dict[str, Any], Callable[[JobRow], bool]]] = [
    ({"name_prefix": "needle"}, lambda job: job.name == "needle-1"),
    ({"reasons": ["NO_STEPS", "LOST"]}, lambda job: job.reason == "NO_STEPS"),
    ({"desired": ["PAUSE"]}, lambda job: job.desired == "PAUSE"),
    ({"priority": 99}, lambda job: job.priority == 99),
    ({"workers": 0}, lambda job: job.workers == 0),
    ({"task": "cifar-resnet18"}, lambda job: job.task == "cifar-resnet18"),
    ({"method": "topk", "statuses": ["RUNNING"]}, lambda job: job.method == "topk"),
    ({"policy": "fixed"}, lambda job: job.policy == "fixed"),
    ({"cloned_from": "c" * 36, "owner": "ada"}, lambda job: job.cloned_from is not None),
    ({"started_after": 90.0}, lambda job: (job.started_at or 0) >= 90),
    ({"started_before": 90.0}, lambda job: (job.started_at or 0) < 90),
    ({"ended_after": 90.0}, lambda job: (job.ended_at or 0) >= 90),
    ({"ended_after": 80.0, "ended_before": 95.0}, lambda job: 80 <= (job.ended_at or 0) < 95),
]
"""Filters, and the jobs that each finds."""


def make_rows() -> list[dict[str, Any]]:
    absent = {"workers": 0, "cloned_from": None}
    rows = []
    for n in range(JOBS):
        times = {"created_at": n, "started_at": n + 1.0, "ended_at": JOBS - n}
        rare = RARE if n % 7 == 0 else {}
        archived = {"archived": n % 3 == 0}
        rows.append({"id": f"{n:036d}", **COMMON, **absent, **times, **rare, **archived})
    return rows


def test_each_filter_finds_the_newest_jobs_that_match(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as session:
        session.execute(insert(JobRow), make_rows())
    repository = Repository(database)
    jobs = repository.jobs(JobFilter(archived=None, limit=JOBS))
    for given, matches in FILTERS:
        for archived in (False, None):
            expected = [job.id for job in jobs if matches(job) and archived in {None, job.archived}]
            wanted = JobFilter(**given, archived=archived, limit=20)
            assert [job.id for job in repository.jobs(wanted)] == expected[:20], given
            assert expected
    database.close()
