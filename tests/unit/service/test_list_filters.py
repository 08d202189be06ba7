"""What filters of a list find, each alone and any two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

from accordion_service.schemas.queries import Archived
from accordion_service.store.engine.database import Database
from accordion_service.store.reads import job_list
from accordion_service.store.reads.job_list import JobFilter, ListingState
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow

NUM_JOBS, LIMIT = 240, 20
COMMON: dict[str, Any] = {
    "name": "sweep-1",
    "status": "SUCCEEDED",
    "reason": "COMPLETED",
    "desired": "RUN",
    "priority": 50,
    "workers": 0,
    "task": "digits-mlp",
    "method": "powersgd",
    "policy": "two_level",
    "cloned_from": None,
    "owner": "bob",
    "kind": "job",
    "archived": False,
    "min_workers": 1,
}
RARE: dict[str, tuple[int, Any]] = {
    "name": (2, "needle-1"),
    "status": (3, "RUNNING"),
    "reason": (4, "NO_STEPS"),
    "desired": (5, "PAUSE"),
    "priority": (7, 99),
    "workers": (6, 7),
    "task": (9, "cifar-resnet18"),
    "method": (8, "topk"),
    "policy": (10, "fixed"),
    "cloned_from": (11, "c" * 36),
    "owner": (13, "ada"),
    "kind": (14, "guest"),
    "archived": (15, True),
    "min_workers": (12, 2),
}
"""Values that every so-manieth job has: no two of them are on the same jobs."""
AT_90 = "1970-01-01T00:01:30Z"
FILTERS: list[tuple[dict[str, Any], Callable[[JobRow], bool]]] = [
    ({"name": "needle-1"}, lambda job: job.name == "needle-1"),
    ({"name_prefix": "needle"}, lambda job: job.name.startswith("needle")),
    ({"status": ["RUNNING"]}, lambda job: job.status == "RUNNING"),
    ({"reason": ["NO_STEPS", "LOST"]}, lambda job: job.reason == "NO_STEPS"),
    ({"desired": ["PAUSE"]}, lambda job: job.desired == "PAUSE"),
    ({"priority": 99}, lambda job: job.priority == 99),
    ({"workers": 0}, lambda job: job.workers == 0),
    ({"task": "cifar-resnet18"}, lambda job: job.task == "cifar-resnet18"),
    ({"method": "topk"}, lambda job: job.method == "topk"),
    ({"policy": "fixed"}, lambda job: job.policy == "fixed"),
    ({"cloned_from": "c" * 36}, lambda job: job.cloned_from is not None),
    ({"owner": "ada"}, lambda job: job.owner == "ada"),
    ({"visible_to": "ada"}, lambda job: job.owner in {None, "ada"}),
    ({"kind": "guest"}, lambda job: job.kind == "guest"),
    ({"label": ["team:a"]}, lambda job: job.labels["team"] == "a"),
    ({"id": "0" * 34 + "1"}, lambda job: job.id.startswith("0" * 34 + "1")),
    ({"ids": [f"{n:036d}" for n in range(50)]}, lambda job: int(job.id) < 50),
    ({"created_after": AT_90}, lambda job: job.created_at >= 90),
    ({"created_before": AT_90}, lambda job: job.created_at < 90),
    ({"started_after": AT_90}, lambda job: (job.started_at or 0) >= 90),
    ({"started_before": AT_90}, lambda job: (job.started_at or 999) < 90),
    ({"ended_after": AT_90}, lambda job: (job.ended_at or 0) >= 90),
    ({"ended_before": AT_90}, lambda job: (job.ended_at or 999) < 90),
    ({"unlike": ListingState(priority=50)}, lambda job: job.priority != 50),
    ({"unlike": ListingState(limits=(1, 2))}, lambda job: job.min_workers != 1),
    (
        {"unlike": ListingState(labels=[("team", "a"), ("old", None)])},
        lambda job: job.labels != {"team": "a"},
    ),
]
"""Filters, and the jobs that each finds."""


@pytest.fixture
def reads(database_url: str) -> Iterator[JobReads]:
    database = Database(database_url)
    with database.write() as session:
        session.add_all(make_job(number) for number in range(NUM_JOBS))
    yield JobReads(database)
    database.close()


def make_job(number: int) -> JobRow:
    rare = {column: value for column, (nth, value) in RARE.items() if number % nth == 0}
    if number % 14 == 0:
        rare["owner"] = None
    if number % 22 == 0:
        rare["name"] = "needle-2"
    if number % 23 == 0:
        rare["priority"] = 10
    labels = {"team": "ab"[number % 17 > 8]} | ({"old": "yes"} if number % 16 == 0 else {})
    return JobRow(
        id=f"{number:036d}",
        **COMMON | rare,
        spec={},
        labels=labels,
        max_workers=2,
        created_at=float(number * 7 % 11 * 20 + number // 11),
        queued_at=0.0,
        started_at=number * 3 % 239 + 1.0 if number % 18 else None,
        ended_at=float(number * 5 % 241) if number % 19 else None,
    )


def test_a_filter_alone_finds_the_newest_jobs_that_match(reads: JobReads) -> None:
    jobs = reads.find(JobFilter(archived=Archived.ANY, limit=NUM_JOBS))
    for given, matches in FILTERS:
        expected = [job.id for job in jobs if matches(job)]
        found = reads.find(JobFilter(**given, archived=Archived.ANY, limit=LIMIT))
        assert [job.id for job in found] == expected[:LIMIT], given


@pytest.mark.parametrize("max_rows", [0, job_list.MAX_ROWS])
@pytest.mark.parametrize("archived", [Archived.FALSE, Archived.ANY])
def test_filters_find_the_newest_jobs_that_match_all_of_them(
    reads: JobReads,
    monkeypatch: pytest.MonkeyPatch,
    archived: Archived,
    max_rows: int,
) -> None:
    monkeypatch.setattr(job_list, "MAX_ROWS", max_rows)
    jobs = reads.find(JobFilter(archived=Archived.ANY, limit=NUM_JOBS))
    jobs = [job for job in jobs if archived == Archived.ANY or not job.archived]
    for (one, is_one), (other, is_other) in combinations(FILTERS, 2):
        is_label = "label" in one or "label" in other
        if one.keys() != other.keys() and (max_rows or is_label):
            expected = [job.id for job in jobs if is_one(job) and is_other(job)]
            wanted = JobFilter(**one, **other, archived=archived, limit=LIMIT)
            assert [job.id for job in reads.find(wanted)] == expected[:LIMIT], wanted


@pytest.mark.parametrize(("given", "matches"), FILTERS, ids=[str(given) for given, _ in FILTERS])
def test_no_other_filter_finds_the_same_jobs(
    given: dict[str, Any], matches: Callable[[JobRow], bool]
) -> None:
    jobs = [make_job(number) for number in range(NUM_JOBS)]
    found = {job.id for job in jobs if matches(job)}
    assert 0 < len(found) < NUM_JOBS
    others = [is_other for other, is_other in FILTERS if other != given]
    assert found not in [{job.id for job in jobs if is_other(job)} for is_other in others]


def test_every_filter_is_tried() -> None:
    tried = {name for given, _ in FILTERS for name in given} | {"archived"}
    assert tried == JobFilter.model_fields.keys() - {"before", "limit"}
