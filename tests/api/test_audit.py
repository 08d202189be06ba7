"""The audit log: one entry for each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.access import Role
from accordion_service.domain.audit import AuditAction
from accordion_service.store.tables.models import AuditRow
from tests.api.team import (
    ADMIN,
    JOBS,
    PLAN,
    WRITES,
    Team,
    api_routes,
    at,
    id_of,
)
from tests.api.test_code import GOOD, SHA
from tests.api.test_nodes import put_nodes
from tests.api.world import DIGITS

HOOKS = "/api/v1/webhooks"


def write_calls(team: Team, token: str) -> list[tuple[str, str, str, dict[str, Any]]]:
    """A call of every writing route that changes something, after the action that is recorded."""
    job_id, paused = team.submit(token), team.submit(token)
    job, plan = f"{JOBS}/{job_id}", team.call(token, "POST", "/api/v1/plans", json=PLAN).json()
    team.call(token, "POST", f"{JOBS}/{paused}/pause")
    put_nodes(team)
    gone = team.submit(token)
    team.call(token, "POST", f"{JOBS}/{gone}/cancel")
    team.call(token, "POST", JOBS, json={**DIGITS, "labels": {"sweep": "lr"}})
    override = team.call(token, "POST", f"{job}/overrides", json={"level": "low"}).json()
    spare = id_of(team.token(token))
    team.call(token, "POST", "/api/v1/users", json={"name": "old"})
    hook = {"name": "hook", "url": "https://8.8.8.8/"}
    team.call(token, "POST", HOOKS, json={**hook, "name": "old"})
    sent = team.call(token, "POST", f"{HOOKS}/old/test").json()["id"]
    zipped = {"content": GOOD, "headers": {"Content-Type": "application/zip"}}
    return [
        ("job.submitted", "POST", JOBS, {"json": DIGITS}),
        ("job.submitted", "POST", f"{job}/clone", {"json": {}}),
        ("job.changed", "PATCH", job, {"json": {"priority": 1}}),
        ("job.resized", "POST", f"{job}/resize", {"json": {"min": 1, "max": 3}}),
        ("override.added", "POST", f"{job}/overrides", {"json": {"level": "high"}}),
        ("override.cancelled", "DELETE", f"{job}/overrides/{override['id']}", {}),
        ("job.paused", "POST", f"{job}/pause", {}),
        ("job.resumed", "POST", f"{JOBS}/{paused}/resume", {}),
        ("job.cancelled", "POST", f"{job}/cancel", {}),
        ("job.retried", "POST", f"{job}/retry", {}),
        (
            "job.paused",
            "POST",
            "/api/v1/job-actions",
            {"json": {"action": "pause", "labels": {"sweep": "lr"}}},
        ),
        ("node.cordoned", "POST", "/api/v1/nodes/gpu-1/cordon", {"json": {"reason": "test"}}),
        ("node.restored", "POST", "/api/v1/nodes/gpu-1/restore", {}),
        ("quota.set", "PUT", "/api/v1/quotas", {"json": {"user": "*", "jobs": 9}}),
        ("quota.removed", "DELETE", "/api/v1/quotas", {"params": {"user": "*"}}),
        ("secret.set", "PUT", "/api/v1/secrets/hf-token", {"json": {"value": "x"}}),
        ("secret.removed", "DELETE", "/api/v1/secrets/hf-token", {}),
        ("webhook.added", "POST", HOOKS, {"json": hook}),
        ("webhook.secret_rotated", "POST", f"{HOOKS}/hook/secret", {}),
        ("webhook.tested", "POST", f"{HOOKS}/hook/test", {}),
        ("webhook.sent_again", "POST", f"{HOOKS}/old/deliveries/{sent}/send", {}),
        ("webhook.removed", "DELETE", f"{HOOKS}/hook", {}),
        ("job.archived", "POST", f"{JOBS}/{gone}/archive", {}),
        ("job.unarchived", "POST", f"{JOBS}/{gone}/unarchive", {}),
        ("job.deleted", "DELETE", f"{JOBS}/{gone}", {}),
        ("plan.added", "POST", "/api/v1/plans", {"json": PLAN}),
        ("plan.cancelled", "DELETE", f"/api/v1/plans/{plan['id']}", {}),
        ("code.uploaded", "POST", "/api/v1/code", zipped),
        ("user.added", "POST", "/api/v1/users", {"json": {"name": "new"}}),
        ("user.changed", "PATCH", "/api/v1/users/old", {"json": {"disabled": True}}),
        ("token.added", "POST", "/api/v1/tokens", {"json": {"label": "x"}}),
        ("token.revoked", "DELETE", f"/api/v1/tokens/{spare}", {}),
        (
            "login_code.added",
            "POST",
            "/api/v1/login-codes",
            {"json": {"challenge": "c" * 43, "label": "x"}},
        ),
        ("login_link.added", "POST", "/api/v1/login-links", {"json": {}}),
    ]


def test_every_writing_route_leaves_one_entry_in_the_audit_log(team: Team) -> None:
    token = team.user("root", Role.ADMIN)
    calls = write_calls(team, token)
    patterns = {
        (method, route.path_regex)
        for route in api_routes(team.app)
        for method in route.methods & WRITES
    }
    for number, (action, method, path, more) in enumerate(calls):
        newest = team.audit(limit=1)[0]["id"]
        headers = {"X-Request-ID": f"request-{number}", **more.pop("headers", {})}
        answer = team.call(token, method, path, headers=headers, **more)
        assert answer.is_success, f"{action}: {answer.text}"
        entries = [entry for entry in team.audit(limit=5) if entry["id"] > newest]
        assert [
            (entry["action"], entry["user"], entry["token_id"], entry["request_id"])
            for entry in entries
        ] == [(action, "root", id_of(token), f"request-{number}")]
        patterns -= {one for one in patterns if one[0] == method and one[1].match(path)}
    assert patterns == set(), "these routes are not in the test"


def test_a_repeated_request_without_effect_leaves_no_entry(team: Team) -> None:
    ada = team.user("ada")
    job_id = team.submit(ada)
    for _ in range(2):
        team.call(ada, "POST", f"{JOBS}/{job_id}/pause")
    [entry] = team.audit(subject=job_id, action="job.paused")
    assert (entry["before"]["desired"], entry["after"]["desired"]) == ("RUN", "PAUSE")


def test_a_refused_request_leaves_no_entry(team: Team) -> None:
    ada, eve = team.user("ada"), team.user("eve", Role.VIEWER)
    job_id = team.submit(ada)
    before = team.audit(limit=1)
    team.call(eve, "POST", f"{JOBS}/{job_id}/cancel")
    team.call(ada, "POST", f"{JOBS}/{job_id}/resize", json={"min": 3, "max": 1})
    assert team.audit(limit=1) == before


def test_the_audit_log_is_filtered_and_paged(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    jobs = [team.submit(token) for token in (ada, bob, ada)]
    assert [entry["subject"] for entry in team.audit(user="ada")] == [jobs[2], jobs[0]]
    first = team.call(ADMIN, "GET", "/api/v1/audit", params={"user": "ada", "limit": 1}).json()
    rest = team.audit(user="ada", cursor=first["next_cursor"])
    assert [entry["subject"] for entry in rest] == [jobs[0]]


def test_the_audit_log_is_filtered_by_token_and_request(team: Team) -> None:
    ada = team.user("ada")
    laptop = team.token(ada)
    jobs = [
        team.submit(token, headers={"X-Request-ID": f"by-{name}"})
        for name, token in {"ada": ada, "laptop": laptop}.items()
    ]
    assert [entry["subject"] for entry in team.audit(token_id=id_of(laptop))] == [jobs[1]]
    assert [entry["subject"] for entry in team.audit(request_id="by-ada")] == [jobs[0]]
    assert team.audit(request_id="by-ada", token_id=id_of(laptop)) == []


def test_an_entry_has_the_name_of_its_job_or_token(team: Team) -> None:
    ada = team.user("ada")
    job_id, other = team.submit(ada), team.submit(ada)
    team.call(ada, "PATCH", f"{JOBS}/{job_id}", json={"name": "mine"})
    for path in ("/cancel", ""):
        team.call(ada, "POST" if path else "DELETE", f"{JOBS}/{other}{path}")
    name = team.audit(action="job.deleted")[0]["before"]["name"]
    team.call(ada, "POST", "/api/v1/tokens", json={"label": "laptop"})
    names = {
        (entry["action"], entry["subject"]): entry["subject_name"] for entry in team.audit(limit=50)
    }
    assert names["job.submitted", job_id] == names["job.changed", job_id] == "mine"
    assert names["job.deleted", other] == names["job.cancelled", other] == name
    assert "laptop" in names.values()
    assert names["user.added", "ada"] is None


def test_the_audit_log_is_filtered_by_time_and_paged(team: Team) -> None:
    ada, begin, jobs = team.user("ada"), team.clock.now + 60, []
    for _ in range(4):
        team.clock.now += 60
        jobs.append(team.submit(ada))

    def listed(**params: Any) -> list[str]:
        return [entry["subject"] for entry in team.audit(action="job.submitted", **params)]

    assert listed(time_after=at(begin + 60)) == jobs[:0:-1]
    assert listed(time_before=at(begin + 60)) == jobs[:1]
    middle = {"time_after": at(begin + 60), "time_before": at(begin + 180)}
    assert listed(**middle) == [jobs[2], jobs[1]]
    found = team.call(ADMIN, "GET", "/api/v1/audit", params={**middle, "limit": 1}).json()
    rest = team.audit(**middle, limit=1, cursor=found["next_cursor"])
    assert [entry["subject"] for entry in (*found["items"], *rest)] == [jobs[2], jobs[1]]


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        ("job.canceled", "has no action 'job.canceled'; did you mean 'job.cancelled'?"),
        ("?", "has no action '?'; known are job.submitted, job.changed, "),
        ("", "has no action ''; known are "),
        ("x" * 1000, f"has no action '{'x' * 64}'; known are "),
    ],
)
def test_an_unknown_action_is_refused_as_a_filter(team: Team, action: str, detail: str) -> None:
    answer = team.call(ADMIN, "GET", "/api/v1/audit", params={"action": action})
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["pointer"] == "query/action"
    assert detail in error["detail"]


def test_the_schema_and_the_book_list_all_actions(team: Team) -> None:
    schema = team.call(ADMIN, "GET", "/openapi.json").json()["components"]["schemas"]["AuditAction"]
    assert schema["enum"] == list(AuditAction)
    page = Path(__file__).parents[2] / "docs" / "guides" / "team.md"
    for text in (schema["description"], page.read_text()):
        assert [action for action in AuditAction if f"`{action}`" not in text] == []


def test_the_page_suggests_every_action(team: Team) -> None:
    page = team.call(ADMIN, "GET", "/audit").text
    assert [one for one in AuditAction if f'<option value="{one}">' not in page] == []


def test_an_entry_of_another_version_is_listed(team: Team) -> None:
    append = {"time": team.clock.now, "user": "ada", "token_id": "", "request_id": ""}
    with team.app.state.accordion.database.write() as session:
        session.add(AuditRow(**append, action="job.juggled", subject="x"))
    assert team.audit(limit=1)[0]["action"] == "job.juggled"


def test_a_time_without_a_zone_is_refused_as_a_filter(team: Team) -> None:
    params = {"time_after": "2027-01-31T22:00:00"}
    answer = team.call(ADMIN, "GET", "/api/v1/audit", params=params)
    assert answer.status_code == 422
    assert "has no time zone" in answer.json()["detail"]


def test_an_upload_is_recorded_by_its_digest(team: Team) -> None:
    ada = team.user("ada")
    headers = {"Content-Type": "application/zip"}
    assert team.call(ada, "POST", "/api/v1/code", content=GOOD, headers=headers).status_code == 201
    [entry] = team.audit(action="code.uploaded")
    assert (entry["subject"], entry["after"]["size_bytes"]) == (SHA, len(GOOD))
    team.call(ada, "POST", "/api/v1/code", content=GOOD, headers=headers)
    assert len(team.audit(action="code.uploaded")) == 1, "the second upload changed nothing"
