"""Webhooks of several users: whose jobs they are for, and who sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from accordion_service.api.app import create_app
from accordion_service.domain.access import Role
from accordion_service.settings.settings import load_settings
from tests.api.conftest import LOCAL
from tests.api.team import ADMIN, JOBS, Team
from tests.api.webhook_receiver import LOOPBACK
from tests.api.world import Clock, World

HOOKS = "/api/v1/webhooks"
URL = "http://127.0.0.1:9/hook"


@pytest.fixture
def team(tmp_path: Path, database_url: str) -> Iterator[Team]:
    settings = load_settings(
        home=tmp_path, admin_token=ADMIN, database_url=database_url, webhook_networks=LOOPBACK
    )
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL, follow_redirects=False) as client:
        yield Team(app, client, clock)
    app.state.accordion.database.close()


def add(team: Team, token: str, **body: Any) -> Any:
    return team.call(
        token, "POST", HOOKS, json={"name": "hook", "url": URL, "statuses": ["QUEUED"], **body}
    )


def sent_jobs(team: Team, token: str) -> list[str]:
    """Jobs in the messages to the webhook of a user, in order."""
    found = team.call(token, "GET", f"{HOOKS}/hook/deliveries").json()["items"]
    return [one["job_id"] for one in reversed(found)]


def test_a_webhook_is_for_the_jobs_of_its_user(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    for token in (ada, bob):
        assert add(team, token).status_code == 201
    mine, other = team.submit(ada), team.submit(bob)
    assert (sent_jobs(team, ada), sent_jobs(team, bob)) == ([mine], [other])


def test_a_webhook_of_another_user_is_not_there(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    add(team, ada)
    team.submit(ada)
    delivery = team.call(ada, "GET", f"{HOOKS}/hook/deliveries").json()["items"][0]["id"]
    for token in (bob, ADMIN):
        assert team.call(token, "GET", HOOKS).json()["items"] == []
        for method, path in (
            ("DELETE", "hook"),
            ("POST", "hook/secret"),
            ("POST", "hook/test"),
            ("GET", "hook/deliveries"),
            ("POST", f"hook/deliveries/{delivery}/send"),
        ):
            assert team.call(token, method, f"{HOOKS}/{path}").status_code == 404
    add(team, bob)
    path = f"{HOOKS}/hook/deliveries/{delivery}/send"
    assert team.call(bob, "POST", path).status_code == 404
    assert team.call(ada, "POST", path).status_code == 202


def test_a_webhook_for_all_jobs_needs_a_token_that_sees_them(team: Team) -> None:
    ada, oscar = team.user("ada"), team.user("oscar", Role.OPERATOR)
    refused = add(team, ada, all_jobs=True)
    assert refused.status_code == 403
    assert "needs the scope 'read:all'; leave all_jobs (--all-jobs) out" in refused.text
    limited = team.token(ADMIN, user="oscar", scopes=["read", "submit"])
    assert add(team, limited, all_jobs=True).status_code == 403
    assert add(team, oscar, all_jobs=True).json()["all_jobs"]
    job_id = team.submit(ada)
    assert sent_jobs(team, oscar) == [job_id]


def test_a_webhook_for_all_jobs_ends_with_the_role_that_allowed_it(team: Team) -> None:
    ada, oscar = team.user("ada"), team.user("oscar", Role.OPERATOR)
    add(team, oscar, all_jobs=True)
    first = team.submit(ada)
    delivery = team.call(oscar, "GET", f"{HOOKS}/hook/deliveries").json()["items"][0]["id"]
    team.call(ADMIN, "PATCH", "/api/v1/users/oscar", json={"role": "editor"})
    team.submit(ada)
    for method, path in (
        ("GET", "deliveries"),
        ("POST", "test"),
        ("POST", f"deliveries/{delivery}/send"),
    ):
        refused = team.call(oscar, method, f"{HOOKS}/hook/{path}")
        assert refused.status_code == 403
        assert "which you may not see without the scope 'read:all'" in refused.text
    team.call(ADMIN, "PATCH", "/api/v1/users/oscar", json={"role": "operator"})
    assert sent_jobs(team, team.token(ADMIN, user="oscar")) == [first]
    assert team.call(oscar, "DELETE", f"{HOOKS}/hook").status_code == 200


def test_nothing_is_queued_for_a_disabled_user(team: Team) -> None:
    ada = team.user("ada")
    add(team, ada, statuses=["CANCELLED"])
    jobs = [team.submit(ada), team.submit(ada)]
    team.call(ADMIN, "POST", f"{JOBS}/{jobs[0]}/cancel")
    team.call(ADMIN, "PATCH", "/api/v1/users/ada", json={"disabled": True})
    team.call(ADMIN, "POST", f"{JOBS}/{jobs[1]}/cancel")
    team.call(ADMIN, "PATCH", "/api/v1/users/ada", json={"disabled": False})
    assert sent_jobs(team, ada) == [jobs[0]]


def test_the_audit_log_has_the_host_of_a_webhook_and_not_its_path(team: Team) -> None:
    ada = team.user("ada")
    add(team, ada, url="http://127.0.0.1:9/a-secret-path", label="team:vision")
    [entry] = team.audit(action="webhook.added")
    assert (entry["user"], entry["subject"]) == ("ada", "hook")
    assert entry["after"] == {
        "host": "127.0.0.1",
        "statuses": ["QUEUED"],
        "label": "team:vision",
        "all_jobs": False,
    }


def test_a_change_of_status_costs_one_query_without_webhooks(
    tmp_path: Path, database_url: str
) -> None:
    world, seen = World(tmp_path, database_url=database_url), []

    def note(*details: Any) -> None:
        if "webhook" in details[2]:
            seen.append(details[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        job_id = world.submit()
        num_changes = len(seen)
        world.cancel(job_id)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        world.close()
    assert (num_changes, len(seen)) == (1, 2)
    assert all(statement.startswith("SELECT") for statement in seen)
