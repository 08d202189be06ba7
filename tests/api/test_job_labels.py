"""The table of labels follows every write of a job, and lists by label are read from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion_service.backups.backups import move_database, restore_backup, write_backup
from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import Conflict
from accordion_service.schemas.queries import Archived
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads import job_list
from accordion_service.store.reads.job_list import JobFilter
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.archiving import JobArchive
from accordion_service.store.writes.deletion import JobDeletion
from accordion_service.store.writes.steering import ListingChange, accept_any
from tests.api.label_law import check_labels, labels_of
from tests.api.test_backups import new_settings as new_settings
from tests.api.world import World

JOBS, ACTIONS = "/api/v1/jobs", "/api/v1/job-actions"
VISION = {"team": "vision", "sweep": "lr"}


def ended(world: World, **spec: Any) -> str:
    job_id = world.submit(training={"epochs": 1}, **spec)
    world.finish(job_id)
    return job_id


def listed(client: TestClient, *labels: str, **query: Any) -> list[str]:
    answer = client.get(JOBS, params={"label": labels, **query})
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["items"]]


def test_labels_of_a_submission_and_of_its_clone_are_listed(
    client: TestClient, world: World
) -> None:
    job_id = client.post(JOBS, json={"task": {"name": "digits-mlp"}, "labels": VISION}).json()["id"]
    other = client.post(f"{JOBS}/{job_id}/clone", json={"spec": {"labels": {"sweep": None}}})
    clone_id = other.json()["id"]
    assert labels_of(world.database, job_id) == VISION
    assert labels_of(world.database, clone_id) == {"team": "vision"}
    assert listed(client, "team:vision") == [clone_id, job_id]
    assert listed(client, "team:vision", "sweep:lr") == [job_id]


def test_labels_of_a_guest_run_are_listed(client: TestClient, world: World) -> None:
    guest = world.runtime.enlist(spec={"labels": VISION})
    world.turn_until(lambda: world.jobs.get(guest) is not None)
    assert labels_of(world.database, guest) == VISION
    assert listed(client, "sweep:lr", kind="guest") == [guest]
    assert listed(client, "sweep:lr", kind="job") == []


def test_changed_and_removed_labels_are_listed_as_they_are_now(
    client: TestClient, world: World
) -> None:
    job_id, other = world.submit(labels=VISION), world.submit(labels=VISION)
    changes = {"team": "audio", "sweep": None, "stage": "b"}
    client.patch(f"{JOBS}/{job_id}", json={"labels": changes, "name": "renamed"})
    assert labels_of(world.database, job_id) == {"team": "audio", "stage": "b"}
    assert labels_of(world.database, other) == VISION
    assert listed(client, "team:audio", name="renamed") == [job_id]
    assert listed(client, "team:vision") == listed(client, "sweep:lr") == [other]
    client.patch(f"{JOBS}/{job_id}", json={"labels": {"team": None, "stage": None}})
    assert labels_of(world.database, job_id) == {}


def test_archived_and_retried_jobs_are_listed_apart_from_others(
    client: TestClient, world: World
) -> None:
    done, cancelled = ended(world, labels=VISION), world.submit(labels=VISION)
    world.cancel(cancelled)
    body = {"action": "archive", "labels": {"sweep": "lr"}}
    assert len(client.post(ACTIONS, json=body).json()["items"]) == 2
    check_labels(world.database)
    assert listed(client, "sweep:lr") == []
    assert listed(client, "sweep:lr", archived="true") == [cancelled, done]
    client.post(f"{JOBS}/{cancelled}/retry")
    check_labels(world.database)
    assert listed(client, "sweep:lr") == [cancelled]
    assert listed(client, "sweep:lr", archived="any") == [cancelled, done]


def test_labels_of_a_deleted_job_are_deleted(client: TestClient, world: World) -> None:
    job_id, kept = ended(world, labels=VISION), world.submit(labels=VISION)
    client.delete(f"{JOBS}/{job_id}")
    assert {row[0] for row in check_labels(world.database)} == {kept}


def test_a_label_that_is_no_text_is_in_no_list(client: TestClient, world: World) -> None:
    job_id = world.submit(labels=VISION)
    with world.database.write() as session:
        session.get_one(JobRow, job_id).labels = {"team": "vision", "x": [None]}
    assert labels_of(world.database, job_id) == {}
    assert listed(client, "team:vision") == []


def test_a_refused_write_leaves_the_labels_as_they_were(world: World) -> None:
    job_id = world.submit(labels=VISION)

    def fail() -> None:
        with world.database.write() as session:
            session.get_one(JobRow, job_id).labels = {"team": "audio"}
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert labels_of(world.database, job_id) == VISION


def test_labels_are_restored_with_their_jobs(
    world: World, tmp_path: Path, new_settings: Settings
) -> None:
    world.submit(labels=VISION)
    file = tmp_path / "backup.tar.gz"
    write_backup(world.settings, file, world.clock())
    restore_backup(new_settings, file, world.clock())
    restored = Database(new_settings.database)
    assert check_labels(restored) == check_labels(world.database)
    restored.close()


def test_labels_move_with_their_jobs(world: World, new_settings: Settings) -> None:
    world.submit(labels=VISION)
    move_database(world.settings, new_settings.database, world.clock())
    moved = Database(new_settings.database)
    assert len(check_labels(moved)) == 2
    moved.close()


KEYS, VALUES = ("team", "sweep", "stage"), ("a", "b")
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((*VALUES, None)))
STEPS = st.one_of(
    st.tuples(st.just("submit"), LABELS),
    st.tuples(st.just("change"), CHANGES),
    st.tuples(st.sampled_from(["rename", "cancel", "retry", "turn"]), st.none()),
    st.tuples(st.sampled_from(["archive", "unarchive", "delete"]), st.none()),
)


def take_step(world: World, job_id: str, step: tuple[str, Any]) -> None:
    """Write one request for the job, which its state may not allow."""
    what, change = step
    writers = world.database, world.clock, FULL_ACCESS
    deeds: dict[str, Callable[[], object]] = {
        "submit": lambda: world.submit(labels=change),
        "change": lambda: world.lifecycle.change_listing(
            job_id, ListingChange(labels=change), check=accept_any
        ),
        "rename": lambda: world.lifecycle.change_listing(
            job_id, ListingChange(name="renamed"), check=accept_any
        ),
        "cancel": lambda: world.cancel(job_id),
        "retry": lambda: world.lifecycle.retry(job_id, accept_any),
        "turn": world.turn,
        "archive": lambda: JobArchive(*writers).archive(job_id, accept_any),
        "unarchive": lambda: JobArchive(*writers).unarchive(job_id, accept_any),
        "delete": lambda: JobDeletion(*writers).delete_job(job_id, accept_any),
    }
    with suppress(Conflict):
        deeds[what]()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 3)), min_size=1, max_size=20))
def test_the_table_says_what_the_documents_say_after_every_write(
    world: World, steps: list[tuple[tuple[str, Any], int]]
) -> None:
    jobs = [world.submit(labels={"team": "a"})]
    for step, number in steps:
        take_step(world, jobs[number % len(jobs)], step)
        jobs = [job.id for job in world.jobs.find(JobFilter(archived=Archived.ANY))] or [
            world.submit(labels={"team": "a"})
        ]
        check_labels(world.database)


FILTERS: list[dict[str, Any]] = [
    {},
    {"status": ["FAILED"]},
    {"status": ["SUCCEEDED", "FAILED", "CANCELLED"]},
    {"status": ["RUNNING", "QUEUED"], "desired": ["RUN"]},
    {"desired": ["PAUSE"]},
    {"owner": "ada"},
    {"visible_to": "ada"},
    {"visible_to": "ada", "status": ["QUEUED", "RUNNING"]},
    {"kind": "guest"},
    {"name": "n1"},
    {"name_prefix": "n"},
    {"name_prefix": "N", "status": ["SUCCEEDED"]},
    {"id": "0"},
    {"id": "00000001", "status": ["SUCCEEDED", "FAILED"]},
    {"created_after": "1970-01-01T00:00:20Z", "created_before": "1970-01-01T00:00:40Z"},
]
SEARCHES: list[list[str]] = [
    [],
    ["all:yes"],
    ["team:a"],
    ["run:7"],
    ["old:yes"],
    ["all:yes", "team:b"],
    ["team:a", "all:yes", "old:yes"],
    ["team:a", "team:a"],
    ["team:a", "team:b"],
    ["no:label"],
]


def add_jobs(database: Database) -> list[JobRow]:
    """Add jobs of every kind, several of the same time; return them, the newest first."""
    statuses = [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.RUNNING, Status.QUEUED]
    jobs = [
        JobRow(
            id=f"{number:08x}-0000-4000-8000-{number * 7919 % 1000:012x}",
            name=("n1", "n2", "Nx")[number % 3],
            kind="guest" if number % 11 == 0 else "job",
            owner=None if number % 11 == 0 else ("ada", "bob")[number % 2],
            status=statuses[number * 3 % 5].value,
            desired=("RUN", "PAUSE")[number % 7 == 0],
            reason="SUBMITTED",
            spec={},
            labels={"all": "yes", "team": "abc"[number % 3], "run": str(number)}
            | ({"old": "yes"} if number < 12 else {}),
            priority=0,
            min_workers=1,
            max_workers=1,
            created_at=float(number // 2),
            queued_at=0.0,
            archived=number % 4 == 0 and number * 3 % 5 < 3,
        )
        for number in range(120)
    ]
    with database.write() as session:
        session.add_all(jobs)
    return sorted(jobs, key=lambda job: (job.created_at, job.id), reverse=True)


def matches(job: JobRow, wanted: JobFilter) -> bool:
    """Return whether a job passes a filter, by its row alone."""
    return (
        job.status in (wanted.status or [job.status])
        and job.desired in (wanted.desired or [job.desired])
        and all(job.labels.get(key) == value for key, value in wanted.labels)
        and wanted.name in {None, job.name}
        and wanted.owner in {None, job.owner}
        and wanted.kind in {None, job.kind}
        and wanted.archived in {Archived.ANY, str(job.archived).lower()}
        and (wanted.visible_to is None or job.owner in {None, wanted.visible_to})
        and job.name.startswith(wanted.name_prefix or "")
        and job.id.startswith(wanted.id or "")
        and (wanted.created_after is None or job.created_at >= wanted.created_after.timestamp())
        and (wanted.created_before is None or job.created_at < wanted.created_before.timestamp())
    )


def read_all(reads: JobReads, wanted: JobFilter) -> list[str]:
    """Read all pages of a list."""
    found: list[JobRow] = []
    while True:
        before = (found[-1].created_at, found[-1].id) if found else None
        page = reads.find(wanted.model_copy(update={"before": before}))
        assert len(page) <= wanted.limit
        found += page
        if len(page) < wanted.limit:
            return [job.id for job in found]


@pytest.mark.parametrize("max_rows", [0, 5, job_list.MAX_ROWS], ids=str)
@pytest.mark.parametrize("archived", list(Archived))
def test_a_list_has_the_jobs_that_match_whichever_index_it_is_read_by(
    database_url: str, monkeypatch: pytest.MonkeyPatch, max_rows: int, archived: Archived
) -> None:
    monkeypatch.setattr(job_list, "MAX_ROWS", max_rows)
    database = Database(database_url)
    jobs, reads = add_jobs(database), JobReads(database)
    for filters in FILTERS:
        for labels in SEARCHES:
            wanted = JobFilter(**filters, label=labels, archived=archived, limit=30)
            expected = [job.id for job in jobs if matches(job, wanted)]
            assert read_all(reads, wanted) == expected, wanted
    database.close()
