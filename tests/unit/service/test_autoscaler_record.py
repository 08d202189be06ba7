"""The record of the request to the autoscaler, as it is stored and shown."""

from __future__ import annotations

import json

import pytest

from accordion_service.domain.capacity.autoscaling import (
    AWAIT_NODES_S,
    NO_RECORD,
    AutoscalerRecord,
    read_autoscaler_record,
)
from accordion_service.domain.capacity.resources import ResourceRequest

GROUP = ResourceRequest(min=2, max=4, cpus=1.0, gpus=1.0)
RECORD = AutoscalerRecord(
    requested_at={"a": 100.0},
    awaited_since={"a": 100.0},
    obstacles={"b": "no node type of the autoscaler has 8 GPUs"},
    num_waiting=2,
    num_held=3,
)


def test_a_stored_record_is_read_as_it_was() -> None:
    assert read_autoscaler_record(json.loads(json.dumps(RECORD.dump()))) == RECORD


@pytest.mark.parametrize(
    "document", [None, 3, [], {"requested_at": [1], "obstacles": {"a": 1}, "num_held": "three"}]
)
def test_an_unreadable_document_counts_as_no_record(document: object) -> None:
    assert read_autoscaler_record(document) == NO_RECORD


@pytest.mark.parametrize(
    ("now", "age"),
    [(140.0, "40 s"), (100.0 + 300, "5 min"), (100.0 + 4 * 3600, "4 h"), (90.0, "0 s")],
)
def test_the_sentence_says_what_was_requested_and_how_long_ago(now: float, age: str) -> None:
    said = RECORD.describe("a", GROUP, now)
    assert said == f"nodes for 2 workers of 1 CPU and 1 GPU each were requested {age} ago"


def test_an_obstacle_is_the_sentence_and_other_jobs_have_none() -> None:
    assert RECORD.describe("b", GROUP, 140.0) == RECORD.obstacles["b"]
    assert RECORD.describe("c", GROUP, 140.0) == ""


@pytest.mark.parametrize(
    ("now", "awaiting"), [(100.0, {"a"}), (100.0 + AWAIT_NODES_S, set()), (50.0, set())]
)
def test_others_leave_capacity_to_a_job_for_a_limited_time(now: float, awaiting: set[str]) -> None:
    assert RECORD.list_awaiting(now) == awaiting
