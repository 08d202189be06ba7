"""Columns that this version cannot read fail no page, and neither stop a job nor its
cancellation.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.store.tables.models import (
    AttemptRow,
    DecisionRow,
    EpochRow,
    EventRow,
    JobRow,
    LogChunkRow,
    OverrideRow,
)
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_workers.records.contract import FailureRecord
from tests.api.test_streams import frames
from tests.api.world import World

JOBS = "/api/v1/jobs"
HISTORY = ("/attempts", "/epochs", "/decisions", "/checkpoints")
PAGES = ("", "/schedule", "/why", "/report", "/overrides", *HISTORY)
DOCUMENTS: list[Any] = [{"from": "another version"}, [{"x": 1}], 7]


def keep(world: World, table: type[Any], **columns: Any) -> None:
    """Overwrite columns in all rows of a table."""
    with world.database.write() as session:
        for row in session.query(table):
            for name, value in columns.items():
                setattr(row, name, value)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_job_with_unreadable_columns_is_shown_overridden_and_cancelled(
    client: TestClient, world: World, document: Any
) -> None:
    names = ("progress", "tally", "layers", "metrics", "storage", "packages")
    columns = dict.fromkeys(names, document)
    job_id = world.submit(training={"epochs": 300})
    world.train(job_id)
    keep(world, JobRow, **columns)
    pages = {page: client.get(f"{JOBS}/{job_id}{page}").status_code for page in PAGES}
    assert pages == dict.fromkeys(PAGES, 200)
    assert client.get("/metrics").text.count(f'accordion_job_info{{job_id="{job_id}"') == 1
    assert client.post(f"{JOBS}/{job_id}/overrides", json={"level": "low"}).status_code == 202
    world.runtime.break_group(job_id)
    world.reach(job_id, Status.RECOVERING)
    keep(world, JobRow, **columns)
    world.train(job_id)
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED


@pytest.mark.parametrize("task", [None, "digits-mlp"])
def test_a_job_whose_task_is_unreadable_has_a_page(
    client: TestClient, world: World, task: Any
) -> None:
    job_id = world.submit()
    keep(world, JobRow, spec={"task": task})
    assert client.get(f"/jobs/{job_id}").status_code == 200


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_unreadable_rows_beside_a_job_fail_no_page_and_no_cancellation(
    client: TestClient, world: World, document: Any
) -> None:
    job_id = world.submit(training={"epochs": 300})
    world.train(job_id)
    world.override(job_id)
    world.say(job_id, "a line")
    world.turn_until(lambda: world.job(job_id).metrics != {})
    keep(world, AttemptRow, tally=document)
    keep(world, DecisionRow, decision=document)
    keep(world, EpochRow, record=document)
    keep(world, EventRow, data=document)
    keep(world, LogChunkRow, lines=document)
    keep(world, OverrideRow, layers=document, level=document, apply_at=document)
    pages = {page: client.get(f"{JOBS}/{job_id}{page}").status_code for page in PAGES}
    assert pages == dict.fromkeys(PAGES, 200)
    world.kill_scheduler()
    world.runtime.forget(job_id)
    world.cancel(job_id)
    assert world.finish(job_id).status == Status.CANCELLED


def test_event_of_an_unknown_type_is_streamed_as_stored(client: TestClient, world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    with world.database.write() as session:
        session.get_one(EventRow, (job_id, 2)).type = "another-version"
    found = list(frames(iter(client.get(f"{JOBS}/{job_id}/events").text.splitlines())))
    assert [int(one["id"]) for one in found] == list(range(1, len(found) + 1))
    assert found[1]["event"] == "another-version"


def test_outage_of_the_storage_is_not_counted_as_a_failure(world: World) -> None:
    job_id = world.submit(training={"epochs": 300})
    world.train(job_id)
    message = "OSError: [Errno 28] No space left on device"
    world.runtime.report(
        job_id, FailureRecord(cause="infrastructure", rank=0, message=message, is_storage=True)
    )
    job = world.reach(job_id, Status.RECOVERING)
    assert (job.failures, job.reason) == (0, Reason.WORKERS_LOST)
    assert message in job.message


def test_an_unreadable_column_is_logged_once(world: World) -> None:
    job = world.job(world.submit())
    job.labels = {"a": {"b": "c"}}  # type: ignore[dict-item]  # as another version could have stored it
    with capture_logs() as logs:
        found = [stored_labels(job) for _ in range(3)]
    assert found == [{}, {}, {}]
    assert [(entry["row"], entry["column"]) for entry in logs] == [(job.id, "labels")]
