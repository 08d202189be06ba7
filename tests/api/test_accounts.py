"""Users and their tokens."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_client import Client
from accordion_service.api import open_requests
from accordion_service.api.app import create_app
from accordion_service.domain.access import Role
from accordion_service.settings.settings import load_settings
from accordion_service.store.writes.old_rows import delete_ended_tokens
from tests.api.conftest import LOCAL, serve_live
from tests.api.team import (
    ADMIN,
    DAY_S,
    JOBS,
    Team,
    at,
    id_of,
    wait_for,
)
from tests.api.world import DIGITS, Clock


def test_a_token_is_shown_once_and_stored_as_a_digest(team: Team) -> None:
    ada = team.user("ada")
    secret = ada.split("_", 2)[2]
    listed = team.call(ada, "GET", "/api/v1/tokens")
    assert [row["id"] for row in listed.json()["items"]] == [id_of(ada)]
    assert secret not in listed.text
    assert secret not in str(team.audit())


def test_an_expired_token_that_created_another_is_kept_to_revoke_that_one(team: Team) -> None:
    root = team.user("root", role=Role.ADMIN, days=None)
    expiring = team.token(root, days=1)
    team.user("bob")
    child = team.token(expiring, user="bob", days=None)
    alone = team.token(root, days=1)
    team.clock.jump(100 * DAY_S)
    delete_ended_tokens(team.app.state.accordion.database, before=team.clock.now, limit=100)
    listed = team.call(root, "GET", "/api/v1/tokens").json()["items"]
    assert {id_of(root), id_of(expiring)} <= {row["id"] for row in listed}
    assert id_of(alone) not in {row["id"] for row in listed}
    assert team.call(child, "GET", JOBS).status_code == 200
    team.call(root, "DELETE", f"/api/v1/tokens/{id_of(root)}")
    assert team.call(child, "GET", JOBS).status_code == 401


def test_the_newest_use_of_a_token_is_noted_to_the_minute(team: Team) -> None:
    ada = team.user("ada")

    def used() -> str | None:
        rows = team.call(ADMIN, "GET", "/api/v1/tokens", params={"user": "ada"}).json()["items"]
        found: str | None = rows[0]["used_at"]
        return found

    assert used() is None
    team.call(ada, "GET", JOBS)
    wait_for(lambda: used() is not None)  # it is stored beside the request
    first = used()
    team.clock.jump(59)
    team.call(ada, "GET", JOBS)
    team.clock.jump(1)
    team.call(ada, "GET", JOBS)
    wait_for(lambda: used() != first)
    assert used() == at(team.clock.now)


def test_an_expired_or_revoked_token_is_refused(team: Team) -> None:
    brief, other = team.user("ada", days=1.0), team.token(ADMIN, user="ada", days=None)
    team.clock.jump(DAY_S - 1)
    assert team.call(brief, "GET", JOBS).status_code == 200
    team.clock.jump(1)
    assert team.call(brief, "GET", JOBS).status_code == 401
    revoke = ("DELETE", f"/api/v1/tokens/{id_of(other)}")
    revoked = team.call(other, *revoke).json()
    assert team.call(other, "GET", JOBS).status_code == 401
    team.clock.jump(5)
    assert team.call(ADMIN, *revoke).json()["revoked_at"] == revoked["revoked_at"]
    assert len(team.audit(action="token.revoked")) == 1


@pytest.mark.parametrize("wrong", ["secret", "id", "case"])
def test_a_token_with_a_wrong_part_is_refused(team: Team, wrong: str) -> None:
    prefix, token_id, secret = team.user("ada").split("_", 2)
    other = {
        "secret": f"{prefix}_{token_id}_{secret[:-1]}",
        "id": f"{prefix}_{token_id[::-1]}0_{secret}",
        "case": f"{prefix}_{token_id}_{secret.swapcase()}",
    }[wrong]
    assert team.call(other, "GET", JOBS).status_code == 401


def test_a_disabled_user_is_refused_and_accepted_again(team: Team) -> None:
    ada = team.user("ada")
    for disabled, status in ((True, 401), (False, 200)):
        changed = team.call(ADMIN, "PATCH", "/api/v1/users/ada", json={"disabled": disabled})
        assert changed.status_code == 200
        answer = team.call(ada, "GET", JOBS)
        assert (answer.status_code, "user 'ada' is disabled" in answer.text) == (status, disabled)


def test_a_new_role_applies_to_tokens_at_once(team: Team) -> None:
    ada = team.user("ada", Role.OPERATOR)
    assert team.call(ada, "GET", "/metrics").status_code == 200
    team.call(ADMIN, "PATCH", "/api/v1/users/ada", json={"role": "viewer"})
    assert team.call(ada, "GET", "/metrics").status_code == 403
    me = team.call(ada, "GET", "/api/v1/me").json()
    assert (me["user"], me["scopes"]) == ("ada", ["read", "read:all", "tokens"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"scopes": ["read", "override"]},
            "cannot have override; allowed are read, submit, tokens",
        ),
        ({"days": 3.0}, "valid for longer than the one that creates it"),
        ({"days": None}, "valid for longer than the one that creates it"),
        ({"user": "bob"}, "a token for user 'bob' needs the scope 'admin'"),
    ],
)
def test_a_token_allows_no_more_than_the_one_that_creates_it(
    team: Team, asked: dict[str, Any], said: str
) -> None:
    team.user("bob")
    limited = team.user("ada", scopes=["read", "submit", "tokens"], days=2.0)
    refused = team.call(
        limited, "POST", "/api/v1/tokens", json={"label": "x", "days": 1.0, **asked}
    )
    assert (refused.status_code, said in refused.json()["detail"]) == (403, True), refused.text


def test_a_token_cannot_have_more_than_the_role_of_its_user(team: Team) -> None:
    team.user("ada", Role.VIEWER)
    body = {"label": "x", "user": "ada", "scopes": ["read", "submit"]}
    refused = team.call(ADMIN, "POST", "/api/v1/tokens", json=body)
    assert refused.status_code == 403
    assert "user 'ada' (viewer) cannot have submit" in refused.json()["detail"]


def test_a_token_without_the_scope_creates_and_revokes_none(team: Team) -> None:
    wide = team.user("ada")
    monitor = team.token(wide, scopes=["read"])
    body = {"label": "x", "scopes": ["read"]}
    assert team.call(monitor, "POST", "/api/v1/tokens", json=body).status_code == 403
    assert team.call(monitor, "DELETE", f"/api/v1/tokens/{id_of(wide)}").status_code == 403


def test_a_revoked_token_takes_those_with_it_that_it_created(team: Team) -> None:
    lost, safe = team.user("ada"), team.token(ADMIN, user="ada")
    child = team.token(lost)
    grandchild = team.token(child)
    team.call(safe, "DELETE", f"/api/v1/tokens/{id_of(lost)}")
    found = [team.call(token, "GET", JOBS).status_code for token in (lost, child, grandchild, safe)]
    assert found == [401, 401, 401, 200]
    assert len(team.audit(action="token.revoked")) == 3


def test_what_an_admins_token_created_for_others_is_revoked_with_it(team: Team) -> None:
    kept, found = team.user("ada"), team.user("root", Role.ADMIN)
    planted = team.token(found, user="ada")
    team.call(ADMIN, "DELETE", f"/api/v1/tokens/{id_of(found)}")
    statuses = [team.call(token, "GET", JOBS).status_code for token in (found, planted, kept)]
    assert statuses == [401, 401, 200]


def test_an_admin_creates_for_others_what_their_role_allows(
    team: Team,
) -> None:
    narrow = team.user("root", Role.ADMIN, scopes=["read", "tokens", "admin"])
    body = {"label": "x", "scopes": ["write:all"]}
    assert team.call(narrow, "POST", "/api/v1/tokens", json=body).status_code == 403
    team.user("oscar", Role.OPERATOR)
    assert (
        team.call(narrow, "POST", "/api/v1/tokens", json={**body, "user": "oscar"}).status_code
        == 201
    )


def test_priorities_above_the_limit_need_write_all(tmp_path: Path, database_url: str) -> None:
    settings = load_settings(
        home=tmp_path, admin_token=ADMIN, database_url=database_url, max_priority=60
    )
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL) as client:
        team = Team(app, client, clock)
        ada, oscar = team.user("ada"), team.user("oscar", Role.OPERATOR)
        job = f"{JOBS}/{team.submit(ada)}"
        high = {**DIGITS, "priority": 61}
        for method, path, body, pointer in [
            ("POST", JOBS, high, "/priority"),
            ("PATCH", job, {"priority": 61}, "/priority"),
            ("POST", f"{job}/clone", {"spec": {"priority": 61}}, "/spec/priority"),
        ]:
            refused = team.call(ada, method, path, json=body)
            assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]
            assert "at most 60 is allowed" in refused.json()["detail"]
            assert team.call(oscar, method, path, json=body).is_success
    app.state.accordion.database.close()


def test_tokens_of_others_are_seen_and_revoked_by_admins_only(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    listed = team.call(bob, "GET", "/api/v1/tokens", params={"user": "ada"})
    assert listed.status_code == 403
    assert team.call(bob, "DELETE", f"/api/v1/tokens/{id_of(ada)}").status_code == 404
    assert team.call(ADMIN, "DELETE", f"/api/v1/tokens/{id_of(ada)}").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "users", {"name": "ada"}, 409),
        ("POST", "users", {"name": "admin"}, 409),
        ("POST", "users", {"name": "Ada"}, 422),
        ("POST", "users", {"name": "eve", "role": "king"}, 422),
        ("PATCH", "users/nobody", {"disabled": True}, 404),
        ("PATCH", "users/admin", {"disabled": True}, 409),
        ("POST", "tokens", {"label": "x", "user": "nobody"}, 404),
        ("POST", "tokens", {"label": "x", "scopes": ["everything"]}, 422),
        ("POST", "tokens", {"label": "x", "days": 0}, 422),
        ("DELETE", "tokens/none", None, 404),
    ],
)
def test_a_wrong_request_is_refused(
    team: Team, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    team.user("ada")
    answer = team.call(ADMIN, method, f"/api/v1/{path}", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), answer.text


def test_a_browser_session_has_the_rights_of_its_token_and_ends_with_it(team: Team) -> None:
    eve = team.user("eve", Role.VIEWER)
    answer = team.client.post("/login", data={"token": eve})
    assert answer.headers["location"] == "/"
    assert team.client.get("/api/v1/me").json()["user"] == "eve"
    assert team.client.post(JOBS, json=DIGITS).status_code == 403
    team.call(ADMIN, "DELETE", f"/api/v1/tokens/{id_of(eve)}")
    assert team.client.get("/api/v1/me").status_code == 401


def test_a_login_link_logs_in_the_user_who_made_it(team: Team) -> None:
    ada = team.user("ada")
    path = team.call(ada, "POST", "/api/v1/login-links", json={}).json()["path"]
    secret = re.search(r"link=([^&]+)", path)
    assert secret is not None
    team.client.post("/login", data={"link": secret[1]})
    assert team.client.get("/api/v1/me").json()["user"] == "ada"


def test_a_link_of_a_revoked_token_logs_nobody_in(team: Team) -> None:
    ada = team.user("ada")
    path = team.call(ada, "POST", "/api/v1/login-links", json={}).json()["path"]
    team.call(ADMIN, "DELETE", f"/api/v1/tokens/{id_of(ada)}")
    secret = re.search(r"link=([^&]+)", path)
    assert secret is not None
    answer = team.client.post("/login", data={"link": secret[1]})
    assert answer.headers["location"] == "/login?failed=link"


def test_a_token_that_asks_too_often_is_slowed_down(tmp_path: Path, database_url: str) -> None:
    settings = load_settings(
        home=tmp_path,
        admin_token=ADMIN,
        database_url=database_url,
        requests_per_second=0.001,
        request_burst=3,
    )
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL) as client:
        team = Team(app, client, clock)
        ada = team.user("ada")
        answers = [team.call(ada, "GET", JOBS) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert 900 < int(answers[-1].headers["retry-after"]) <= 1000
        assert answers[-1].json()["code"] == "too_many_requests"
        assert f"token {id_of(ada)} of user 'ada'" in answers[-1].json()["detail"]
        laptop = team.token(ADMIN, user="ada")
        assert team.call(laptop, "GET", JOBS).status_code == 200, "each token has its own limit"
        client.post("/login", data={"token": ada}, follow_redirects=False)
        assert [client.get(JOBS).status_code for _ in range(4)] == [200, 200, 200, 429]
        client.cookies.clear()
        assert {team.call(ADMIN, "GET", JOBS).status_code for _ in range(9)} == {200}
    app.state.accordion.database.close()


def test_a_token_that_creates_one_with_defaults_ends_no_later(team: Team) -> None:
    for own, default in ((2.0, 2.0), (400.0, 90.0), (None, 90.0)):
        name = f"ada-{default if own else 'forever'}"
        limited = team.user(name, days=own)
        for asked in ({}, {"user": name}):
            made = team.call(limited, "POST", "/api/v1/tokens", json={"label": "x", **asked})
            assert made.status_code == 201
            assert made.json()["expires_at"] == at(team.clock() + default * DAY_S)


def test_a_token_with_too_many_open_requests_is_refused_but_no_probe_or_admin(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = team.user("ada")
    monkeypatch.setattr(open_requests, "MIN_ALLOWED", 0)
    team.app.state.accordion.connections.limit = 9  # a tenth of it is none
    refused = team.call(ada, "GET", JOBS)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert f"token {id_of(ada)} of user 'ada' has 0 open requests" in refused.json()["detail"]
    assert team.call(ADMIN, "GET", JOBS).status_code == 200
    assert team.client.get("/livez").status_code == 200


@pytest.mark.parametrize("change", ["revoked", "disabled", "demoted"])
def test_an_open_stream_ends_when_its_token_no_longer_allows_it(
    tmp_path: Path, database_url: str, change: str
) -> None:
    serve = contextmanager(serve_live)
    with (
        serve(tmp_path, database_url=database_url, admin_token=ADMIN, sse_keepalive_s=0.1) as live,
        Client(live.url, ADMIN) as admin,
        live.client() as http,
    ):
        token = admin.add_token("laptop", user=admin.add_user("ada", "operator").name)
        job = admin.submit({**DIGITS, "training": {"epochs": 2000}})
        headers = {"Authorization": f"Bearer {token.token}"}
        with http.stream("GET", f"{JOBS}/{job.id}/events", headers=headers) as stream:
            lines = stream.iter_lines()
            next(lines)
            if change == "revoked":
                admin.revoke_token(token.id)
            else:
                role = "editor" if change == "demoted" else None
                admin.change_user("ada", role=role, disabled=change == "disabled")
            for _ in lines:  # until the stream ends, or pytest's time limit
                pass
        assert admin.job(job.id).ended_at is None


def test_without_authentication_everything_belongs_to_the_admin(client: TestClient) -> None:
    job = client.post(JOBS, json=DIGITS).json()
    assert job["owner"] == "admin"
    assert client.get("/api/v1/me").json()["user"] == "admin"
