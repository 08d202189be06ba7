"""The live api against its own schema: schemathesis generates the requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import settings

from tests.api.conftest import Live, serve_live
from tests.api.schema_run import NOTHING, Foreign, run_schemathesis
from tests.api.team import ADMIN, PLAN, id_of
from tests.api.world import DIGITS
from tests.postgres import find_program

FEW = 2
"""Requests of each kind for each operation."""
WITHOUT_EXPORTS = ("--exclude-operation-id", "get_model")
"""They take seconds each, and have tests."""
LONGEST = "postgresql" if find_program("initdb") else "sqlite"
"""Database of the longest run: what SQLite stores, PostgreSQL may refuse."""
SEED = "5"
"""Makes the runs of CI equal; of the seeds 0 to 7 it follows most links."""
LINKS = re.compile(r"API Links: +(\d+) covered / \d+ selected")
HIDDEN = "only-its-owner-sees-this"
WAITING = {**DIGITS, "name": HIDDEN, "workers": {"cpus": 999}, "labels": {"hidden": HIDDEN}}
"""A job that no cluster can run, so that only users change it."""
JOBS, JSON = "/api/v1/jobs", "application/json"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[Live]:
    """A service with tokens and without a limit of requests."""
    limits = {"requests_per_second": 1e6, "request_burst": 1_000_000}
    home = tmp_path_factory.mktemp("live")
    yield from serve_live(home, database_url=shared_database_url, admin_token=ADMIN, **limits)


@dataclass
class User:
    """A user with a token."""

    live: Live
    token: str

    def call(self, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        with self.live.client() as client:
            return client.request(method, path, headers=headers, **more).raise_for_status()


def add_user(live: Live, user: str, scopes: list[str]) -> User:
    admin, asked = User(live, ADMIN), {"user": user, "label": "test", "scopes": scopes}
    admin.call("POST", "/api/v1/users", json={"name": user})
    return User(live, admin.call("POST", "/api/v1/tokens", json=asked).json()["token"])


def add_objects(user: User) -> Foreign:
    job_id = user.call("POST", JOBS, json=WAITING).json()["id"]
    asked = {"level": "low", "reason": HIDDEN}
    override = user.call("POST", f"{JOBS}/{job_id}/overrides", json=asked).json()["id"]
    plan = {**PLAN, "spec": {**PLAN["spec"], "name": HIDDEN}}
    names = {
        "job_id": job_id,
        "override_id": override,
        "plan_id": user.call("POST", "/api/v1/plans", json=plan).json()["id"],
        "token_id": id_of(user.token),
    }
    return Foreign(text=HIDDEN, parameters={f"path.{one}": value for one, value in names.items()})


def describe_objects(user: User) -> list[Any]:
    """What users can change of the only job and its override, and of the token."""
    [job] = user.call("GET", JOBS).json()["items"]
    path = f"{JOBS}/{job['id']}"
    overrides = user.call("GET", f"{path}/overrides").json()["items"]
    tokens = user.call("GET", "/api/v1/tokens").json()["items"]
    return [
        user.call("GET", path).headers["etag"],
        [job[name] for name in ("name", "labels", "status", "desired", "priority")],
        [(one["id"], one["state"]) for one in overrides],
        [(one["id"], one["revoked_at"]) for one in tokens],
    ]


def check(live: Live, *tokens: str, phases: str, foreign: Foreign = NOTHING) -> None:
    seed = ("--seed", SEED) if settings().derandomize else ()
    options = (*WITHOUT_EXPORTS, *seed, "--phases", phases)
    found = run_schemathesis(
        live.url, tokens, *options, examples=FEW, foreign=foreign, capture=True
    )
    assert found.returncode == 0, found.stdout + found.stderr
    if "stateful" in phases:
        [covered] = LINKS.findall(found.stdout)
        assert int(covered) > 0, "no link of the schema was followed"


def test_schemathesis_finds_nothing_as_a_user_with_few_scopes(
    guarded: Live, shared_database_url: str
) -> None:
    tokens = [add_user(guarded, user, ["read", "submit"]).token for user in ("ada", "bob")]
    is_postgresql = shared_database_url.startswith("postgresql")
    check(guarded, *tokens, phases="examples" if is_postgresql else "stateful")


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing_as_an_admin(guarded: Live, shared_database_url: str) -> None:
    phases = "coverage,fuzzing,stateful" if shared_database_url.startswith(LONGEST) else "examples"
    check(guarded, ADMIN, phases=phases)


def test_nobody_sees_or_changes_what_belongs_to_another_user(guarded: Live) -> None:
    scopes = ["read", "submit", "override", "tokens"]
    eve, owner = add_user(guarded, "eve", scopes), add_user(guarded, "owner", scopes)
    foreign = add_objects(owner)
    before = describe_objects(owner)
    check(guarded, eve.token, phases="fuzzing,stateful", foreign=foreign)
    assert describe_objects(owner) == before


def test_every_example_of_a_spec_in_the_schema_makes_a_job(shared_live: Live) -> None:
    with shared_live.client() as client:
        described = client.get("/openapi.json").json()
    schema: Any = schemathesis.openapi.from_dict(described)
    operation, parts = schema["/api/v1/jobs"]["POST"], described["components"]["schemas"]
    spec = next(part for name, part in parts.items() if name.startswith("JobSpec"))
    for example in spec["examples"]:
        case = operation.Case(body=example, media_type=JSON)
        assert case.call(base_url=shared_live.url, timeout=120).status_code == 201


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
