"""The live api against its own schema: schemathesis generates the requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis

from tests.api.conftest import Live, serve_live
from tests.api.schema_run import run_schemathesis
from tests.api.team import ADMIN

FEW = ("--max-examples", "3", "--exclude-operation-id", "get_model")
"""Requests of each kind for each operation. Exports of models take seconds each, and have tests."""
JSON = "application/json"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with tokens and without a limit of requests."""
    limits = {"requests_per_second": 1e6, "request_burst": 1_000_000}
    yield from serve_live(tmp_path_factory.mktemp("live"), admin_token=ADMIN, **limits)


def add_token(live: Live, user: str, scopes: list[str]) -> str:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with live.client() as client:
        client.post("/api/v1/users", json={"name": user}, headers=headers)
        asked = {"user": user, "label": "test", "scopes": scopes}
        return str(client.post("/api/v1/tokens", json=asked, headers=headers).json()["token"])


def check(live: Live, *tokens: str, phases: str) -> None:
    found = run_schemathesis(live.url, tokens, *FEW, "--phases", phases, capture=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Stateful (in" in found.stdout


def test_schemathesis_finds_nothing_as_a_user_with_few_scopes(guarded: Live) -> None:
    tokens = [add_token(guarded, user, ["read", "submit"]) for user in ("ada", "bob")]
    check(guarded, *tokens, phases="examples,stateful")


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing_as_an_admin(guarded: Live) -> None:
    check(guarded, ADMIN, phases="coverage,fuzzing,stateful")


def test_every_example_of_a_spec_in_the_schema_makes_a_job(shared_live: Live) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{shared_live.url}/openapi.json")
    operation = schema["/api/v1/jobs"]["POST"]
    with shared_live.client() as client:
        parts = client.get("/openapi.json").json()["components"]["schemas"]
    spec = next(part for name, part in parts.items() if name.startswith("JobSpec"))
    for example in spec["examples"]:
        case = operation.Case(body=example, media_type=JSON)
        assert case.call(timeout=20).status_code == 201


def test_the_schema_lists_what_a_spec_can_name(shared_live: Live) -> None:
    with shared_live.client() as client:
        parts = client.get("/openapi.json").json()["components"]["schemas"]
        known = {
            kind: [row["name"] for row in client.get(f"/api/v1/{kind}").json()["items"]]
            for kind in ("tasks", "methods", "policies")
        }
    assert parts["TaskSpec"]["properties"]["name"]["anyOf"][0]["enum"] == known["tasks"]
    assert parts["CompressionSpec"]["properties"]["method"]["enum"] == known["methods"]
    assert parts["PolicySpec"]["properties"]["name"]["enum"] == known["policies"]
