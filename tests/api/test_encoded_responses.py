"""Responses that travel in gzip: pages, their scripts, JSON and logs; no streams, no models."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.api.dashboard.assets import compute_fingerprint, list_assets
from tests.api.conftest import Live
from tests.api.world import DIGITS, World

JOBS = "/api/v1/jobs"
CHARTS = "plotly.min.js"
GZIP, PLAIN = {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}


@pytest.fixture
def job_id(client: TestClient, world: World) -> str:
    """A job with enough epochs and lines that their texts are long."""
    job_id = world.submit(training={"epochs": 20})
    world.finish(job_id)
    return job_id


def read_raw(client: Any, path: str) -> tuple[bytes, Any]:
    """The bytes of a response as they travel, and its headers."""
    with client.stream("GET", path, headers=GZIP) as response:
        return b"".join(response.iter_raw()), response.headers


def script_path() -> str:
    return f"/static/pages/{compute_fingerprint()}/{CHARTS}"


def test_the_code_of_the_charts_travels_in_a_third_of_its_bytes(client: TestClient) -> None:
    raw, headers = read_raw(client, script_path())
    whole = list_assets()[CHARTS].path.read_bytes()
    assert (headers["content-encoding"], gzip.decompress(raw) == whole) == ("gzip", True)
    assert len(raw) < len(whole) / 3
    assert headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    "path", [f"{JOBS}/{{}}/epochs", f"{JOBS}/{{}}/logs", "/jobs/{}", "/openapi.json", "/metrics"]
)
def test_texts_are_encoded_for_who_accepts_it(client: TestClient, job_id: str, path: str) -> None:
    path = path.format(job_id)
    raw, headers = read_raw(client, path)
    plain = client.get(path, headers=PLAIN)
    assert (headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert len(raw) < len(plain.content) / 2
    if path != "/metrics":  # whose counters count the requests
        assert gzip.decompress(raw) == plain.content
    assert headers["content-type"] == plain.headers["content-type"]


def test_what_fits_into_a_packet_is_left_as_it_is(client: TestClient) -> None:
    raw, headers = read_raw(client, "/livez")
    assert ("content-encoding" in headers, len(raw)) == (False, int(headers["content-length"]))


@pytest.mark.parametrize("path", ["events", "logs?follow=true"])
def test_a_stream_is_not_encoded_and_its_first_lines_come_at_once(live: Live, path: str) -> None:
    with live.client() as client:
        job_id = client.post(JOBS, json=DIGITS | {"training": {"epochs": 500}}).json()["id"]
        with client.stream("GET", f"{JOBS}/{job_id}/{path}", headers=GZIP) as response:
            lines: Iterator[str] = response.iter_lines()
            assert next(line for line in lines if line)
            assert "content-encoding" not in response.headers
        client.post(f"{JOBS}/{job_id}/cancel")
