"""Hostile requests get short answers: many wrong values, long values, deep nesting, long logins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.conftest import refused_early
from tests.api.test_bad_input import JOBS, problem_of
from tests.api.world import DIGITS

JSON = {"Content-Type": "application/json"}
SHORT = 20_000
"""Bytes that the answer to a wrong request may have."""
MANY_VALUES: list[dict[str, Any]] = [
    {f"k{number}": 1 for number in range(3000)},
    {**DIGITS, "labels": {f" {number}": "x" for number in range(3000)}},
    {**DIGITS, "env": {f" {number}": "x" for number in range(3000)}},
    {**DIGITS, "loggers": [1] * 3000},
    {**DIGITS, "env": {f"A{number}": "\0" for number in range(3000)}},
]
LONG_VALUES: list[dict[str, Any]] = [
    {"x" * 500_000: 1},
    {**DIGITS, "labels": {"x" * 500_000: "x"}},
    {**DIGITS, "task": {"name": "x" * 500_000}},
    {**DIGITS, "compression": {"method": "x" * 500_000}},
    {**DIGITS, "env": {"x" * 500_000: {"secret": "hf"}}},
    {**DIGITS, "code": ["x" * 500] * 1000},
]


@pytest.mark.parametrize("spec", MANY_VALUES)
@refused_early
def test_a_spec_with_many_wrong_values_is_refused_with_the_first_of_them(
    client: TestClient, spec: Any
) -> None:
    answer = client.post(JOBS, content=json.dumps(spec), headers=JSON)
    body = problem_of(answer, 422)
    assert len(body["errors"]) == 20
    assert body["detail"].endswith("more)")
    assert len(answer.content) < SHORT


@refused_early
def test_a_query_with_many_unknown_parameters_is_refused_with_the_first(client: TestClient) -> None:
    answer = client.get(JOBS, params={f"q{number}": 1 for number in range(2000)})
    assert len(problem_of(answer, 422)["errors"]) == 20


@pytest.mark.parametrize("spec", LONG_VALUES)
@refused_early
def test_a_wrong_spec_is_not_echoed_at_length(client: TestClient, spec: Any) -> None:
    answer = client.post(JOBS, json=spec)
    problem_of(answer, 422)
    assert len(answer.content) < SHORT


@pytest.mark.parametrize("path", [f"/{'a' * 50_000}", f"{JOBS}/{'a' * 50_000}"])
@refused_early
def test_a_long_address_is_not_echoed(client: TestClient, path: str) -> None:
    assert len(client.get(path).content) < SHORT


@refused_early
def test_a_body_with_too_many_values_is_refused_as_a_whole(client: TestClient) -> None:
    body = problem_of(client.post(JOBS, json={**DIGITS, "loggers": [1] * 300_000}), 422)
    assert body["detail"] == "the body has more than 10000 values; send less"
    assert len(body["errors"]) == 1


@pytest.mark.parametrize("depth", [33, 400, 946, 949])
@pytest.mark.parametrize("path", [JOBS, "/api/v1/plans", "/login/code"])
@refused_early
def test_a_body_that_is_nested_too_deeply_is_refused(
    client: TestClient, path: str, depth: int
) -> None:
    nested = '{"spec": ' + "[" * depth + "]" * depth + "}"
    answer = client.post(path, content=nested, headers=JSON)
    assert answer.status_code in {400, 422}
    if depth < 900:
        assert problem_of(answer, 422)["detail"] == (
            "the body is nested more than 32 levels deep; send less"
        )


@pytest.mark.parametrize("path", ["/login", "/login/code", "/logout", "/livez", "/static/x"])
@refused_early
def test_a_route_that_is_open_to_everybody_takes_only_a_short_body(
    client: TestClient, path: str
) -> None:
    body = problem_of(client.post(path, content=b"x" * 9000, headers=JSON), 413)
    assert body["detail"] == "the body is larger than 8192 bytes; send less"
