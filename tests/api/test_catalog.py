"""What a spec can name, as the api lists it."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from accordion_workers.tasks import TASKS


@pytest.fixture
def tasks(client: TestClient) -> dict[str, dict]:
    return {item["name"]: item for item in client.get("/api/v1/tasks").json()["items"]}


def test_every_task_of_the_table_is_listed_with_a_json_schema_of_its_options(tasks) -> None:
    assert tasks.keys() >= TASKS.keys()
    for task in tasks.values():
        Draft202012Validator.check_schema(task["options"])
        assert task["summary"]


def test_the_schema_of_a_task_says_what_must_be_given_and_what_can_be_chosen(tasks) -> None:
    options = Draft202012Validator(tasks["lm-lstm"]["options"])
    assert options.is_valid(
        {"data": "/data/text.txt", "tokens": "chars", "tied": False, "dropout": 0.1}
    )
    for wrong in (
        {},
        {"data": "x", "tokens": "bytes"},
        {"data": "x", "width": 0},
        {"data": 3},
        {"data": "x", "w": 1},
    ):
        assert not options.is_valid(wrong), wrong


def test_a_job_without_the_data_that_its_task_needs_is_refused_with_what_to_give(
    client: TestClient,
) -> None:
    answer = client.post("/api/v1/jobs", json={"task": {"name": "cifar-resnet18"}})
    assert answer.status_code == 422
    assert "task cifar-resnet18 needs option 'data'; give path on the workers" in answer.text
