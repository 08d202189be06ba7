"""Invalid Unicode and NUL: refused in requests, replaced in texts of workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.access.request_texts import check_request_texts
from accordion_service.errors import Invalid
from accordion_service.store.tables.models import JobRow
from accordion_workers.records.contract import FailureRecord
from tests.api.conftest import refused_early
from tests.api.test_bad_input import JOBS, problem_of
from tests.api.world import DIGITS, World

OWN = {"name": "mine:Task"}
JSON = {"Content-Type": "application/json"}
UNDECODED = "caf\udce9"
WRONG_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"task": {**OWN, "options": {"file": UNDECODED}}}, "/task/options/file"),
    ({"task": {**OWN, "options": {UNDECODED: "file"}}}, "/task/options/caf\ufffd"),
    ({"task": {**OWN, "options": {"file": "caf\0"}}}, "/task/options/file"),
    ({**DIGITS, "labels": {"team": UNDECODED}}, "/labels/team"),
    ({**DIGITS, "policy": {"options": {"x": [UNDECODED]}}}, "/policy/options/x/0"),
    ({**DIGITS, "checkpoint": {"storage": "file:///data/\0"}}, "/checkpoint/storage"),
]


@pytest.mark.parametrize(("spec", "pointer"), WRONG_TEXTS)
def test_a_spec_with_an_unstorable_text_is_refused_at_its_place(
    client: TestClient, spec: Any, pointer: str
) -> None:
    body = problem_of(client.post(JOBS, content=json.dumps(spec), headers=JSON), 422)
    assert [item["pointer"] for item in body["errors"]] == [pointer]
    assert "send the text as UTF-8" in body["detail"] or "leave it out" in body["detail"]
    assert client.get(JOBS).json()["items"] == []


@pytest.mark.parametrize(
    "wish", [{"reason": UNDECODED}, {"layers": [UNDECODED]}, {"level": {"method": UNDECODED}}]
)
def test_an_override_with_an_unstorable_text_is_refused(
    client: TestClient, world: World, wish: dict[str, Any]
) -> None:
    body = json.dumps({"level": "low", **wish})
    answer = client.post(f"{JOBS}/{world.submit()}/overrides", content=body, headers=JSON)
    assert "is not Unicode text" in problem_of(answer, 422)["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/%00",
        "/jobs/%ff",
        f"{JOBS}/%00/cancel",
        f"{JOBS}?name=%E9",
        f"{JOBS}?cursor=%00",
        "/%ED%B3%A9",
    ],
)
@refused_early
def test_an_address_that_is_not_unicode_text_is_refused(client: TestClient, path: str) -> None:
    body = problem_of(client.request("POST" if path.endswith("cancel") else "GET", path), 422)
    assert body["errors"][0]["pointer"] in {"path", "query"}


def test_an_idempotency_key_with_a_nul_is_refused(client: TestClient) -> None:
    answer = client.post(JOBS, json=DIGITS, headers=[(b"Idempotency-Key", b"a\0")])
    assert problem_of(answer, 422)["errors"][0]["pointer"] == "header/idempotency-key"


def test_a_header_that_is_compared_with_stored_text_has_to_be_utf8() -> None:
    scope = {"raw_path": b"/", "query_string": b"", "headers": [(b"idempotency-key", b"caf\xe9")]}
    with pytest.raises(
        Invalid, match=r"header/idempotency-key: 'caf.*xe9' is not UTF-8 \(byte 3\)"
    ):
        check_request_texts(scope)


def _keep_unreadable_spec(world: World, job_id: str, spec: Any) -> None:
    with world.database.write() as session:
        session.get_one(JobRow, job_id).spec = spec


REFUSED_SPECS: list[Any] = [
    {**DIGITS, "workers": {"min": 1, "max": 1, "cpus": 1, "gpus": 0}, "from_another_version": True},
    {"task": {"name": "removed-task"}},
    {"task": "removed-form"},
    {},
    [],
]
PAGES = (
    "/api/v1/jobs",
    "/api/v1/jobs/{}",
    "/metrics",
    "/jobs/{}",
    "/api/v1/jobs/{}/schedule",
    "/api/v1/cluster",
)


@pytest.mark.parametrize("spec", REFUSED_SPECS)
def test_a_stored_spec_that_this_version_refuses_fails_no_page_and_can_be_cancelled(
    client: TestClient, world: World, spec: Any
) -> None:
    job_id = world.submit()
    world.train(job_id)
    _keep_unreadable_spec(world, job_id, spec)
    answers = {page: client.get(page.format(job_id)).status_code for page in PAGES}
    assert answers == dict.fromkeys(PAGES, 200)
    assert client.post(f"{JOBS}/{job_id}/cancel").json()["spec"] == (spec or {})
    assert world.finish(job_id).status == "CANCELLED"


@pytest.mark.parametrize("spec", REFUSED_SPECS)
def test_a_queued_job_with_an_invalid_stored_spec_fails_and_blocks_no_other_job(
    world: World, spec: Any
) -> None:
    bad, good = world.submit(), world.submit()
    _keep_unreadable_spec(world, bad, spec)
    assert "this version refuses its stored spec" in world.finish(bad).message
    assert world.finish(good).status == "SUCCEEDED"


@pytest.mark.parametrize("ask", [("resize", {"min": 1, "max": 1}), ("overrides", {"level": "low"})])
def test_what_needs_the_spec_is_refused_with_a_sentence_where_it_is_not_readable(
    client: TestClient, world: World, ask: Any
) -> None:
    job_id = world.submit()
    world.train(job_id)
    _keep_unreadable_spec(world, job_id, {"task": {"name": "removed-task"}})
    answer = client.post(f"{JOBS}/{job_id}/{ask[0]}", json=ask[1])
    assert "this version refuses its stored spec" in problem_of(answer, 409)["detail"]


def test_a_row_whose_other_columns_make_no_sense_fails_no_page(
    client: TestClient, world: World
) -> None:
    columns = ("progress", "labels", "metrics", "tally", "layers")
    bad = {world.submit(): column for column in columns}
    with world.database.write() as session:
        for job_id, column in bad.items():
            setattr(session.get_one(JobRow, job_id), column, {"epoch": "caf\udce9", "x": [None]})
    assert {job["id"] for job in client.get(JOBS).json()["items"]} == bad.keys()
    assert client.get("/metrics").status_code == 200
    assert {client.get(f"/jobs/{job_id}").status_code for job_id in bad} == {200}


def test_worker_texts_that_are_not_unicode_are_stored_with_replacement_characters(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    world.train(job_id)
    failure = FailureRecord.model_construct(cause="job", rank=0, message=f"\0{UNDECODED}")
    world.runtime.report(job_id, failure)
    world.say(job_id, "line")
    world.turn(2)
    [failed] = [
        event for event in world.events(job_id, "workers") if event.data["what"] == "failed"
    ]
    assert failed.data["message"] == "\ufffdcaf\ufffd"
    assert client.get(JOBS).status_code == 200


def test_a_supervisors_message_that_is_not_unicode_is_stored_once(world: World) -> None:
    world.runtime.slow_start = 10**6
    job_id = world.submit()
    world.turn(2)
    world.runtime.jobs[job_id].says = f"waits\0 for {UNDECODED}"
    world.turn(8)
    told = [event.data["message"] for event in world.events(job_id, "status")]
    assert told.count("waits\ufffd for caf\ufffd") == 1
