"""Codes with which a logged-in browser logs in a command line."""

from __future__ import annotations

from typing import Any

import pytest
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from accordion_service.domain.access import Role
from tests.api.team import ADMIN, DAY_S, Team, at, id_of

VERIFIER = "v" * 64
CHALLENGE = create_s256_code_challenge(VERIFIER)
PAGE = {"port": 4711, "challenge": CHALLENGE, "label": "laptop"}


def new_code(team: Team, token: str) -> str:
    body = {"challenge": CHALLENGE, "label": "laptop"}
    made = team.call(token, "POST", "/api/v1/login-codes", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["code"])


def exchange(team: Team, code: str, verifier: str = VERIFIER) -> Any:
    return team.client.post("/login/code", json={"code": code, "verifier": verifier})


def test_a_code_becomes_a_token_of_its_user(team: Team) -> None:
    ada = team.user("ada")
    made = exchange(team, new_code(team, ada))
    assert made.status_code == 201, made.text
    assert (made.json()["user"], made.json()["label"]) == ("ada", "laptop")
    assert team.call(made.json()["token"], "GET", "/api/v1/me").json()["user"] == "ada"
    listed = team.call(ada, "GET", "/api/v1/tokens").json()["items"]
    assert {token["id"] for token in listed} == {id_of(ada), made.json()["id"]}
    team.call(ada, "DELETE", f"/api/v1/tokens/{id_of(ada)}")
    assert team.call(made.json()["token"], "GET", "/api/v1/me").status_code == 401


@pytest.mark.parametrize(("days", "expected"), [(3, 3), (None, 30), (90, 30)])
def test_the_token_ends_with_that_of_the_browser_or_after_the_setting(
    team: Team, days: float | None, expected: float
) -> None:
    made = exchange(team, new_code(team, team.user("ada", days=days))).json()
    assert made["expires_at"] == at(team.clock.now + expected * DAY_S)


def test_the_audit_log_names_the_request_that_exchanged_the_code(team: Team) -> None:
    code = new_code(team, team.user("ada"))
    request = {"code": code, "verifier": VERIFIER}
    team.client.post("/login/code", json=request, headers={"X-Request-ID": "exchange-1"})
    [entry] = team.audit(user="ada", action="token.added")
    assert entry["request_id"] == "exchange-1"


def test_a_code_works_once(team: Team) -> None:
    code = new_code(team, ADMIN)
    assert exchange(team, code).json()["user"] == "admin"
    assert exchange(team, code).status_code == 401


def test_a_code_is_worth_nothing_without_its_verifier(team: Team) -> None:
    code = new_code(team, ADMIN)
    refused = exchange(team, code, "w" * 64)
    assert (refused.status_code, "login code is wrong" in refused.text) == (401, True)
    assert exchange(team, code).status_code == 401, "one guess for a code"


@pytest.mark.parametrize("seconds", [61.0, -3600.0])
def test_a_code_ends_after_a_minute_and_when_the_clock_was_set_back(
    team: Team, seconds: float
) -> None:
    code = new_code(team, ADMIN)
    team.clock.now += seconds
    assert exchange(team, code).status_code == 401


def test_a_code_of_a_token_that_was_revoked_is_refused(team: Team) -> None:
    ada = team.user("ada")
    code = new_code(team, ada)
    team.call(ADMIN, "DELETE", f"/api/v1/tokens/{id_of(ada)}")
    assert exchange(team, code).status_code == 401


def test_a_token_without_the_scope_logs_in_no_command_line(team: Team) -> None:
    reader = team.user("ada", Role.VIEWER, scopes=["read"])
    body = {"challenge": CHALLENGE, "label": "laptop"}
    assert team.call(reader, "POST", "/api/v1/login-codes", json=body).status_code == 403
    assert team.call(reader, "GET", "/login/command-line", params=PAGE).status_code == 403


def test_the_page_leads_a_browser_through_the_login(team: Team) -> None:
    page = {"Accept": "text/html"}
    asked = team.client.get("/login/command-line", params=PAGE, headers=page)
    login = team.client.get(asked.headers["location"])
    target = f"/login/command-line?port=4711&amp;challenge={CHALLENGE}&amp;label=laptop"
    assert f'value="{target}"' in login.text
    answer = team.client.post("/login", data={"token": ADMIN, "next": target.replace("amp;", "")})
    shown = team.client.get(answer.headers["location"])
    assert (shown.status_code, 'data-port="4711"' in shown.text) == (200, True)


@pytest.mark.parametrize(
    "changed", [{"port": "127.0.0.1@evil"}, {"port": 0}, {"port": 70000}, {"challenge": "c"}]
)
def test_the_page_leads_only_to_a_port_of_the_browsers_machine(
    team: Team, changed: dict[str, Any]
) -> None:
    assert team.call(ADMIN, "GET", "/login/command-line", params=PAGE | changed).status_code == 422
