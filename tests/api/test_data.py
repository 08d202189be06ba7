"""Locations of data in specs, from the request to the launch of the workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from accordion_workers.records.contract import DataCache
from tests.api.team import JOBS
from tests.api.world import DIGITS, World

DATA = {"train": "s3://bucket/train", "valid": "/mnt/valid"}


@pytest.fixture
def roomy(tmp_path: Path, database_url: str) -> Iterator[World]:
    """A service whose nodes keep up to a megabyte of data in a directory of its own."""
    world = World(
        tmp_path,
        database_url=database_url,
        data_cache="/mnt/cache",
        data_cache_bytes=1_000_000,
    )
    yield world
    world.close()


def test_locations_are_shown_and_passed_to_the_workers_with_the_cache(roomy: World) -> None:
    job_id = roomy.submit(data=DATA)
    roomy.train(job_id)
    launch = roomy.runtime.jobs[job_id].launch
    assert launch.spec.data == DATA
    assert launch.data_cache == DataCache(folder="/mnt/cache", max_bytes=1_000_000)


def test_the_spec_is_stored_with_its_locations(client: TestClient) -> None:
    made = client.post(JOBS, json={**DIGITS, "data": DATA})
    assert (made.status_code, made.json()["spec"]["data"]) == (201, DATA)


def test_a_wrong_location_is_refused_with_its_place(client: TestClient) -> None:
    answer = client.post(JOBS, json={**DIGITS, "data": {"train": "imagenet"}})
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, "/data/train")
    assert "neither an absolute path on the workers" in error["detail"]
