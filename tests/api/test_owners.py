"""What each role may do, and whose jobs it sees."""

from __future__ import annotations

import pytest

from accordion_service.domain.access import SCOPES_OF_ROLE, Role, Scope
from tests.api.team import (
    ANY_TOKEN,
    EVERYBODY,
    JOBS,
    PLAN,
    RULES,
    WRITES,
    Team,
    all_calls,
    all_routes,
    api_routes,
    calls_of,
    rules_of,
)
from tests.api.world import DIGITS

API = "/api/v1"
WRITE_RULES = {
    "POST /login": EVERYBODY,
    "POST /login/code": EVERYBODY,
    "POST /logout": EVERYBODY,
    # It gives a browser what the token may do, and ends with it: every page needs `read`.
    f"POST {API}/login-links": Scope.READ,
    f"POST {API}/code": Scope.SUBMIT,
    f"POST {API}/job-actions": Scope.SUBMIT,
    f"POST {API}/jobs": Scope.SUBMIT,
    f"PATCH {API}/jobs/{{job_id}}": Scope.SUBMIT,
    f"DELETE {API}/jobs/{{job_id}}": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/archive": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/cancel": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/clone": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/pause": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/resize": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/resume": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/retry": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/unarchive": Scope.SUBMIT,
    f"POST {API}/plans": Scope.SUBMIT,
    f"DELETE {API}/plans/{{plan_id}}": Scope.SUBMIT,
    f"PUT {API}/secrets/{{name}}": Scope.SUBMIT,
    f"DELETE {API}/secrets/{{name}}": Scope.SUBMIT,
    f"POST {API}/webhooks": Scope.SUBMIT,
    f"DELETE {API}/webhooks/{{name}}": Scope.SUBMIT,
    f"POST {API}/webhooks/{{name}}/deliveries/{{delivery_id}}/send": Scope.SUBMIT,
    f"POST {API}/webhooks/{{name}}/secret": Scope.SUBMIT,
    f"POST {API}/webhooks/{{name}}/test": Scope.SUBMIT,
    f"POST {API}/jobs/{{job_id}}/overrides": Scope.OVERRIDE,
    f"DELETE {API}/jobs/{{job_id}}/overrides/{{override_id}}": Scope.OVERRIDE,
    f"POST {API}/nodes/{{node}}/cordon": Scope.WRITE_ALL,
    f"POST {API}/nodes/{{node}}/restore": Scope.WRITE_ALL,
    f"POST {API}/login-codes": Scope.TOKENS,
    f"POST {API}/tokens": Scope.TOKENS,
    f"DELETE {API}/tokens/{{token_id}}": Scope.TOKENS,
    f"PUT {API}/quotas": Scope.ADMIN,
    f"DELETE {API}/quotas": Scope.ADMIN,
    f"POST {API}/users": Scope.ADMIN,
    f"PATCH {API}/users/{{name}}": Scope.ADMIN,
}
"""Who may use each route that writes, written down apart from the routes themselves."""


def test_every_route_has_one_rule(team: Team) -> None:
    assert len(api_routes(team.app)) > 25
    for route in all_routes(team.app):
        rules = rules_of(route)
        assert len(rules) == 1, f"{route.path} has the rules {rules}; give it require_scope(...)"
    assert RULES.keys() <= {route.path for route in all_routes(team.app)}


def test_every_writing_route_has_the_rule_that_is_written_here(team: Team) -> None:
    found = {
        f"{method} {route.path}": rule
        for route in all_routes(team.app)
        for method in WRITES & (getattr(route, "methods", None) or set())
        for rule in rules_of(route)
    }
    assert found == WRITE_RULES


def test_a_route_without_a_rule_is_found(team: Team) -> None:
    team.app.get("/new-page")(lambda: None)
    without = [route.path for route in all_routes(team.app) if not rules_of(route)]
    assert without == ["/new-page"]


def test_only_routes_for_everybody_answer_without_a_token(team: Team) -> None:
    for method, path, rule in all_calls(team.app):
        status = team.client.request(method, path).status_code
        assert (status == 401) == (rule != EVERYBODY), f"{method} {path}: {status}"


@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_use_the_routes_of_its_scopes_and_no_others(team: Team, role: Role) -> None:
    token, allowed = team.user("ada", role), {*SCOPES_OF_ROLE[role], ANY_TOKEN, EVERYBODY}
    for method, path, rule in all_calls(team.app):
        status = team.call(token, method, path).status_code
        assert (status == 403) == (rule not in allowed), f"{method} {path}: {status}"
        assert status != 401


def test_a_refusal_names_the_scope_and_who_could(team: Team) -> None:
    refused = team.call(team.user("ada", Role.VIEWER), "POST", JOBS, json=DIGITS)
    assert refused.json()["code"] == "forbidden"
    assert "needs the scope 'submit'" in refused.json()["detail"]
    assert "editor, operator, admin" in refused.json()["detail"]


BODIES = {"resize": {"min": 1, "max": 2}, "overrides": {"level": "low"}, "clone": {}}
"""A valid body of each route of a job that takes one, by the end of its path."""


def test_a_job_of_another_user_is_not_there(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    job_id = team.submit(ada)
    assert team.call(ada, "GET", f"{JOBS}/{job_id}").json()["owner"] == "ada"
    for method, path, _ in calls_of(team.app):
        if path.startswith((f"{JOBS}/none", "/jobs/none")):
            body = {"priority": 1} if method == "PATCH" else BODIES.get(path.rpartition("/")[2])
            found = team.call(bob, method, path.replace("none", job_id, 1), json=body)
            assert found.status_code == 404, f"{method} {path}: {found.text}"
    assert team.call(bob, "GET", JOBS).json()["items"] == []
    assert team.call(bob, "GET", JOBS, params={"owner": "ada"}).json()["items"] == []


def test_jobs_are_counted_as_far_as_they_are_visible(team: Team) -> None:
    ada, bob, eve = team.user("ada"), team.user("bob"), team.user("eve", Role.VIEWER)
    kept, archived = team.submit(ada), team.submit(ada)
    team.submit(bob)
    for job_id in (kept, archived):
        team.call(ada, "POST", f"{JOBS}/{job_id}/cancel")
    team.call(ada, "POST", f"{JOBS}/{archived}/archive")
    counts = {
        name: team.call(token, "GET", "/api/v1/job-counts").json()
        for name, token in (("ada", ada), ("bob", bob), ("eve", eve))
    }
    found = {name: (n["jobs"]["QUEUED"], n["jobs"]["CANCELLED"]) for name, n in counts.items()}
    assert found == {"ada": (0, 1), "bob": (1, 0), "eve": (1, 1)}
    assert [sum(n["guests"].values()) for n in counts.values()] == [0, 0, 0]


def test_a_viewer_sees_all_jobs_and_an_operator_changes_them(team: Team) -> None:
    ada, eve = team.user("ada"), team.user("eve", Role.VIEWER)
    oscar = team.user("oscar", Role.OPERATOR)
    job_id = team.submit(ada)
    assert team.call(eve, "GET", f"{JOBS}/{job_id}").status_code == 200
    assert len(team.call(eve, "GET", JOBS, params={"owner": "ada"}).json()["items"]) == 1
    assert team.call(eve, "GET", JOBS, params={"owner": "eve"}).json()["items"] == []
    assert team.call(oscar, "POST", f"{JOBS}/{job_id}/pause").status_code == 202


def test_who_sees_a_job_but_may_not_change_it_is_told_whose_it_is(team: Team) -> None:
    ada = team.user("ada")
    job_id = team.submit(ada)
    job = f"{JOBS}/{job_id}"
    override = team.call(ada, "POST", f"{job}/overrides", json={"level": "low"}).json()["id"]
    plan = team.call(ada, "POST", "/api/v1/plans", json=PLAN).json()["id"]
    scopes = ["read", "read:all", "submit", "override"]
    oscar = team.user("oscar", Role.OPERATOR, scopes=scopes)
    for method, path, body in [
        ("PATCH", job, {"priority": 1}),
        ("POST", f"{job}/resize", {"min": 1, "max": 2}),
        ("POST", f"{job}/pause", None),
        ("POST", f"{job}/resume", None),
        ("POST", f"{job}/cancel", None),
        ("POST", f"{job}/retry", None),
        ("DELETE", job, None),
        ("POST", f"{job}/overrides", {"level": "low"}),
        ("DELETE", f"{job}/overrides/{override}", None),
        ("DELETE", f"/api/v1/plans/{plan}", None),
    ]:
        refused = team.call(oscar, method, path, json=body)
        assert refused.status_code == 403, f"{method} {path}"
        assert "belongs to user 'ada'" in refused.json()["detail"]
    assert team.call(oscar, "POST", f"{job}/clone", json={}).json()["owner"] == "oscar"


def test_the_queue_hides_the_names_of_jobs_that_the_caller_may_not_see(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    team.submit(ada)
    team.submit(bob)
    entries = team.call(bob, "GET", "/api/v1/queue").json()["items"]
    assert [(entry["owner"], entry["name"] is None) for entry in entries] == [
        ("ada", True),
        ("bob", False),
    ]


def test_a_plan_of_another_user_is_not_there(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    plan = team.call(ada, "POST", "/api/v1/plans", json=PLAN).json()["id"]
    for method in ("GET", "DELETE"):
        assert team.call(bob, method, f"/api/v1/plans/{plan}").status_code == 404
    assert team.call(ada, "DELETE", f"/api/v1/plans/{plan}").status_code == 200


def test_idempotency_keys_of_two_users_do_not_meet(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    key = {"Idempotency-Key": "one"}
    first = team.submit(ada, headers=key)
    assert team.submit(ada, headers=key) == first
    assert team.submit(bob, headers=key) != first


def test_an_override_names_who_requested_it(team: Team) -> None:
    ada = team.user("ada")
    job_id = team.submit(ada)
    made = team.call(ada, "POST", f"{JOBS}/{job_id}/overrides", json={"level": "low"}).json()
    assert made["requested_by"] == "ada"


def test_a_page_of_another_users_job_is_missing(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    job_id = team.submit(ada)
    assert team.call(ada, "GET", f"/jobs/{job_id}").status_code == 200
    assert team.call(bob, "GET", f"/jobs/{job_id}").status_code == 404
