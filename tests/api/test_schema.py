"""The live api against its own schema: schemathesis generates the requests."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.api.conftest import Live
from tests.api.world import DIGITS
from tests.unit.workers.archives import named

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.allow_header_conformance,
]
"""Left out: whether a body that fits the schema is taken, since a spec has rules that a schema
cannot say (min <= max, options by method), and whether one that does not is refused, since numbers
may be written as text.
"""
ZIP = "application/zip"
LONG = {**DIGITS, "training": {"epochs": 100_000}}
EXAMPLES = 12
"""Requests of each kind (fitting, not fitting) for each operation: the whole takes half a minute.
"""


@schemathesis.serializer(ZIP)
def made_up_or_good(context: Any, value: Any) -> bytes:
    """What was made up, which is no archive, or in every other case one."""
    made_up = value if isinstance(value, bytes) else str(value).encode()
    return made_up if len(made_up) % 2 else named("m.py")


def submit(client: httpx2.Client, spec: dict[str, Any]) -> str:
    return str(client.post("/api/v1/jobs", json=spec).json()["id"])


def target(case: schemathesis.Case, ended: str, running: str) -> None:
    """Ask for a job that exists: a running one where the answer does not follow it to its end."""
    follows = case.path.endswith(("/events", "/logs", "/cancel"))
    case.path_parameters["job_id"] = ended if follows else running


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_fits_the_schema(
    shared_live: Live, subtests: pytest.Subtests, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{shared_live.url}/openapi.json")
    with shared_live.client() as client:
        ended, running = submit(client, DIGITS), submit(client, LONG)
    for operation in (result.ok() for result in schema.get_all_operations()):
        wrong = list(operation.iter_parameters()) or any(
            body.media_type != ZIP for body in operation.body
        )
        if mode is GenerationMode.NEGATIVE and not wrong:
            continue  # nothing can be asked wrongly
        with subtests.test(f"{operation.method.upper()} {operation.path}"):
            _ask(operation, mode, ended=ended, running=running)


def _ask(operation: Any, mode: GenerationMode, *, ended: str, running: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def ask(case: schemathesis.Case, known: bool) -> None:
        if known and "job_id" in (case.path_parameters or {}):
            target(case, ended, running)
        case.call_and_validate(checks=CHECKS, timeout=20)

    ask()


def test_every_example_of_a_spec_in_the_schema_makes_a_job(shared_live: Live) -> None:
    operation = schemathesis.openapi.from_url(f"{shared_live.url}/openapi.json")["/api/v1/jobs"][
        "POST"
    ]
    with shared_live.client() as client:
        parts = client.get("/openapi.json").json()["components"]["schemas"]
    spec = next(part for name, part in parts.items() if name.startswith("JobSpec"))
    for example in spec["examples"]:
        case = operation.Case(body=example, media_type="application/json")
        assert case.call_and_validate(checks=CHECKS, timeout=20).status_code == 201


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
