"""Events and logs as they happen, over real connections to a live service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from accordion_service.api.sse import EventReader
from tests.api.conftest import Live, serve_live
from tests.api.world import DIGITS, World

JOBS = "/api/v1/jobs"


def frames(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """The events of a stream; comments and `retry` are no events."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields
            fields = {}
        else:
            fields = {}


def read(
    client: httpx2.Client, path: str, *, stop_after: int = 10_000, **headers: str
) -> list[dict[str, str]]:
    """Events until the stream ends, or until the reader has had enough."""
    found: list[dict[str, str]] = []
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for fields in frames(answer.iter_lines()):
            found.append(fields)
            if len(found) >= stop_after:
                break
    return found


def numbers(found: list[dict[str, str]]) -> list[int]:
    return [int(fields["id"]) for fields in found if "id" in fields]


def submit(client: httpx2.Client, **changes: Any) -> str:
    answer = client.post(JOBS, json={**DIGITS, **changes})
    assert answer.status_code == 201
    return str(answer.json()["id"])


def test_a_stream_tells_everything_once_and_closes_after_the_end(live: Live) -> None:
    with live.client() as client:
        found = read(client, f"{JOBS}/{submit(client)}/events")
    assert numbers(found) == list(range(1, len(numbers(found)) + 1))
    assert found[-1]["event"] == "end"
    assert json.loads(found[-1]["data"])["data"]["status"] == "SUCCEEDED"
    assert {"status", "workers", "epoch", "decision", "checkpoint", "log"} <= {
        fields["event"] for fields in found
    }


def test_no_progress_follows_the_end(client: TestClient, world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    seen = world.job(job_id)
    world.finish(job_id)
    # The job ends between the two queries of a read.
    rows = world.history.events(job_id, after=0)
    state = client.app.state.accordion  # type: ignore[attr-defined]
    page = EventReader(state, job_id).build_page(seen, rows)
    assert (page.has_ended, page.progress) == (True, "")


def test_a_client_that_comes_back_again_and_again_sees_every_number_once(live: Live) -> None:
    with live.client() as client:
        path, seen = f"{JOBS}/{submit(client, training={'epochs': 20})}/events", [0]
        ended = False
        while not ended:
            found = read(client, path, stop_after=7, **{"Last-Event-ID": str(seen[-1])})
            seen += numbers(found)
            ended = found[-1]["event"] == "end"
    assert seen == list(range(len(seen)))
    assert len(seen) > 80


def test_progress_travels_without_a_number(live: Live) -> None:
    with live.client() as client:
        found = read(client, f"{JOBS}/{submit(client, training={'epochs': 40})}/events")
    progress = [fields for fields in found if fields["event"] == "progress"]
    assert progress
    assert all("id" not in fields for fields in progress)
    assert json.loads(progress[0]["data"])["epochs"] == 40


def test_a_reader_of_an_ended_job_is_told_to_stay_away(client: TestClient, world: World) -> None:
    job = world.finish(world.submit())
    assert client.get(f"{JOBS}/{job.id}/events", params={"after": job.event_seq}).status_code == 204
    assert (
        client.get(
            f"{JOBS}/{job.id}/events", headers={"Last-Event-ID": str(job.event_seq)}
        ).status_code
        == 204
    )


@pytest.mark.parametrize("given", ["-1", "x", "1000", "1.5", "9" * 60])
def test_a_number_that_no_event_has_is_refused(
    client: TestClient, world: World, given: str
) -> None:
    answer = client.get(f"{JOBS}/{world.submit()}/events", headers={"Last-Event-ID": given})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "header/last-event-id"


def test_a_silent_stream_is_kept_open_with_comments_and_ends_with_the_service(
    tmp_path: Path, database_url: str
) -> None:
    service = serve_live(tmp_path, database_url=database_url, sse_keepalive_s=0.2)
    live = next(service)
    live.runtime.slow_start = 1_000_000
    with live.client() as client, client.stream("GET", f"{JOBS}/{submit(client)}/events") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": keep-alive"
        live.draining.set()
        assert [line for line in lines if line.startswith("event: end")] == []
    next(service, None)


def test_writes_are_refused_while_the_service_goes_down(live: Live) -> None:
    live.draining.set()
    with live.client() as client:
        answer = client.post(JOBS, json=DIGITS)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert client.get("/readyz").status_code == 503
        assert client.get(JOBS).status_code == 200


def test_logs_are_text_with_who_wrote_each_line(client: TestClient, world: World) -> None:
    job = world.finish(world.submit())
    lines = client.get(f"{JOBS}/{job.id}/logs").text.splitlines()
    assert lines[:2] == [
        "[supervisor] training from epoch 0, step 0",
        "[rank 0] training from epoch 0, step 0",
    ]
    assert lines[-1] == "[rank 0] epoch 3 ended"
    assert client.get(f"{JOBS}/{job.id}/logs", params={"attempt": 2}).text == ""


def test_the_newest_lines_of_a_log_are_read(client: TestClient, world: World) -> None:
    job = world.finish(world.submit())
    path = f"{JOBS}/{job.id}/logs"
    lines = client.get(path).text.splitlines()
    for count in (1, 3, len(lines) - 1, len(lines), 9999):
        assert client.get(path, params={"tail": count}).text.splitlines() == lines[-count:]
    assert client.get(path, params={"tail": 3, "attempt": 2}).text == ""
    assert client.get(path, params={"tail": 0}).status_code == 422


def test_followed_logs_end_with_the_job(live: Live) -> None:
    with live.client() as client:
        found = read(client, f"{JOBS}/{submit(client)}/logs?follow=true")
    texts = [line["text"] for fields in found[:-1] for line in json.loads(fields["data"])["lines"]]
    assert texts.count("epoch 3 ended") == 2
    assert found[-1]["event"] == "end"


def test_followed_logs_may_begin_with_the_newest_lines(live: Live) -> None:
    with live.client() as client:
        path = f"{JOBS}/{submit(client)}/logs?follow=true"
        whole = read(client, path)
        last = read(client, f"{path}&tail=3")
    lines = [line for fields in whole[:-1] for line in json.loads(fields["data"])["lines"]]
    newest = [line for fields in last[:-1] for line in json.loads(fields["data"])["lines"]]
    assert newest == lines[-3:]
    assert [fields["event"] for fields in last][-1] == "end"
    assert last[-2]["id"] == whole[-2]["id"]


def test_a_stream_may_begin_with_the_newest_events(live: Live) -> None:
    with live.client() as client:
        path = f"{JOBS}/{submit(client)}/events"
        whole = numbers(read(client, path))
        assert numbers(read(client, f"{path}?last=3")) == whole[-3:]
        assert numbers(read(client, f"{path}?last=9999")) == whole
