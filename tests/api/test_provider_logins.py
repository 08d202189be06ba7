"""Logins of browsers through an OpenID Connect provider, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from tests.api.oidc_world import Browser, Provider, open_browser, query_of, run_provider
from tests.api.team import ADMIN
from tests.conftest import Require

pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config")  # of the provider
ADA = {"preferred_username": "ada", "groups": ["ml", "unknown"]}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, require: Require) -> Iterator[Provider]:
    # The provider is http on loopback, which must work without Authlib's variable for tests.
    monkeypatch.delenv("AUTHLIB_INSECURE_TRANSPORT", raising=False)
    with run_provider(require) as provider:
        provider.set_user("1", **ADA)
        yield provider


@pytest.fixture
def browser(tmp_path: Path, provider: Provider, database_url: str) -> Iterator[Browser]:
    with open_browser(tmp_path, provider, database_url=database_url) as browser:
        yield browser


def assert_refused(browser: Browser, answer: Any, status: int, reason: str) -> None:
    assert (answer.status_code, reason in answer.text) == (status, True), answer.text
    assert browser.whoami().status_code == 401


def test_the_login_page_names_the_provider(browser: Browser) -> None:
    page = browser.client.get("/login", params={"next": "/cluster"}).text
    assert 'href="/login/oidc?next=/cluster"' in page
    assert "Sign in with Example" in page


def test_a_login_adds_the_user_and_begins_a_session(browser: Browser) -> None:
    answer = browser.log_in(next_page="/cluster")
    assert answer.status_code == 200
    assert 'content="0; url=/cluster"' in answer.text
    [session] = [one for one in answer.headers.get_list("set-cookie") if "_oidc=" not in one]
    assert {"HttpOnly", "SameSite=strict"} <= set(session.split("; "))
    me = browser.whoami().json()
    assert (me["user"], me["scopes"]) == ("ada", ["override", "read", "submit", "tokens"])
    [user] = [one for one in browser.as_admin("GET", "/users").json()["items"] if one["issuer"]]
    assert (user["name"], user["role"], user["issuer"]) == (
        "ada",
        "editor",
        browser.provider.issuer,
    )


def test_a_login_uses_pkce_state_and_nonce(browser: Browser) -> None:
    first, second = query_of(browser.begin()), query_of(browser.begin())
    assert (first["response_type"], first["code_challenge_method"]) == ("code", "S256")
    assert first["redirect_uri"] == "http://127.0.0.1/login/oidc/callback"
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43
        assert first[name] != second[name]


def test_a_login_is_in_the_audit_log_and_its_token_in_the_list(browser: Browser) -> None:
    browser.log_in()
    entries = browser.as_admin("GET", "/audit", params={"user": "ada"}).json()["items"]
    assert [entry["action"] for entry in entries] == ["user.logged_in", "user.added"]
    [token] = browser.client.get("/api/v1/tokens").json()["items"]
    assert (token["label"], entries[0]["token_id"]) == ("login through Example", token["id"])
    assert browser.as_admin("DELETE", f"/tokens/{token['id']}").status_code == 200
    assert browser.whoami().status_code == 401


def test_every_login_begins_a_new_session(browser: Browser) -> None:
    browser.log_in()
    first = dict(browser.client.cookies)
    browser.log_in()
    assert len(first) == 1
    assert dict(browser.client.cookies).keys() == first.keys()
    assert dict(browser.client.cookies) != first


def test_a_changed_role_applies_at_the_next_login(browser: Browser) -> None:
    browser.log_in()
    browser.provider.set_user("1", **ADA | {"groups": ["platform", "ml"]})
    assert "write:all" not in browser.whoami().json()["scopes"]
    browser.log_in()
    assert "write:all" in browser.whoami().json()["scopes"]
    [entry] = browser.as_admin("GET", "/audit", params={"action": "user.changed"}).json()["items"]
    assert (entry["before"]["role"], entry["after"]["role"]) == ("editor", "operator")


def test_a_user_without_a_mapped_group_is_refused(browser: Browser) -> None:
    browser.provider.set_user("2", preferred_username="eve", groups=["guests"])
    assert_refused(browser, browser.log_in("2"), 403, "no group that may use this service")
    assert "eve" not in browser.as_admin("GET", "/users").text


def test_a_user_who_has_lost_all_roles_is_logged_out_everywhere(browser: Browser) -> None:
    browser.log_in()
    made = browser.client.post("/api/v1/tokens", json={"label": "ci", "days": 1}).json()
    ci = {"Authorization": f"Bearer {made['token']}"}
    assert browser.client.get("/api/v1/me", headers=ci).status_code == 200
    browser.provider.set_user("1", **ADA | {"groups": []})
    assert_refused(browser, browser.log_in(), 403, "no group that may use this service")
    assert browser.client.get("/api/v1/me", headers=ci).status_code == 401
    entries = browser.as_admin("GET", "/audit", params={"action": "token.revoked"}).json()["items"]
    assert {entry["user"] for entry in entries} == {"ada"}
    assert made["id"] in [entry["subject"] for entry in entries]
    browser.provider.set_user("1", **ADA)
    assert browser.log_in().status_code == 200
    assert browser.client.get("/api/v1/me", headers=ci).status_code == 401, "it stays revoked"


def test_a_provider_that_names_no_groups_revokes_no_token(browser: Browser) -> None:
    browser.log_in()
    browser.provider.set_user("1", preferred_username="ada")
    answer = browser.log_in()
    assert (answer.status_code, "does not name your groups" in answer.text) == (403, True)
    assert browser.whoami().status_code == 200


def test_a_user_without_a_mapped_group_gets_the_default_role(
    tmp_path: Path, database_url: str, provider: Provider
) -> None:
    provider.set_user("2", preferred_username="eve")
    with open_browser(
        tmp_path, provider, database_url=database_url, oidc_default_role="viewer"
    ) as browser:
        browser.log_in("2")
        assert browser.whoami().json()["scopes"] == ["read", "read:all", "tokens"]
    assert "/userinfo" in provider.hits, "groups may be only there"


@pytest.mark.parametrize("name", ["ada", "admin"])
def test_a_login_never_takes_over_a_local_user(browser: Browser, name: str) -> None:
    browser.as_admin("POST", "/users", json={"name": "ada"})
    browser.provider.set_user("1", preferred_username=name, groups=["root"])
    assert_refused(browser, browser.log_in(), 403, "does not log in as you do")


def test_a_user_of_the_provider_never_takes_over_another_one(browser: Browser) -> None:
    browser.log_in()
    browser.client.cookies.clear()
    browser.provider.set_user("2", **ADA)
    assert_refused(browser, browser.log_in("2"), 403, "does not log in as you do")


@pytest.mark.parametrize("name", ["lovelace", "ada lovelace", None])
def test_a_user_keeps_the_first_name(browser: Browser, name: str | None) -> None:
    browser.log_in()
    browser.client.cookies.clear()
    browser.provider.set_user("1", **ADA | {"preferred_username": name})
    browser.log_in()
    assert browser.whoami().json()["user"] == "ada"


def test_a_disabled_user_cannot_log_in(browser: Browser) -> None:
    browser.log_in()
    browser.as_admin("PATCH", "/users/ada", json={"disabled": True})
    browser.client.cookies.clear()
    assert_refused(browser, browser.log_in(), 403, "is disabled")


@pytest.mark.parametrize("name", ["ada lovelace", "", "-ada", "a" * 64, None, 7, "\u212a8s"])
def test_a_claim_that_is_no_user_name_is_refused(browser: Browser, name: Any) -> None:
    browser.provider.set_user("1", preferred_username=name, groups=["ml"])
    assert_refused(browser, browser.log_in(), 403, "ACCORDION_OIDC_USER_CLAIM")


@pytest.mark.parametrize("name", ["metrics", "retention", "webhook-delivery"])
def test_a_login_never_takes_the_name_of_the_service_itself(browser: Browser, name: str) -> None:
    browser.provider.set_user("1", preferred_username=name, groups=["ml"])
    assert_refused(browser, browser.log_in(), 403, "stands for the service itself")
    answer = browser.as_admin("POST", "/users", json={"name": name})
    assert (answer.status_code, "stands for the service itself" in answer.text) == (409, True)


@pytest.mark.parametrize(
    ("verified", "status"),
    [(True, 200), ("true", 200), (False, 403), ("false", 403), (None, 403), ([], 403)],
)
def test_an_address_names_a_user_unless_it_is_not_verified(
    tmp_path: Path, database_url: str, provider: Provider, verified: Any, status: int
) -> None:
    provider.set_user("1", email="Ada@Example.com", email_verified=verified, groups=["ml"])
    with open_browser(
        tmp_path, provider, database_url=database_url, oidc_user_claim="email"
    ) as browser:
        assert browser.log_in().status_code == status
        if status == 200:
            assert browser.whoami().json()["user"] == "ada@example.com"


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("exp", lambda: int(time.time()) - 3600),
        ("iat", lambda: int(time.time()) + 3600),
        ("nonce", lambda: "another"),
        ("nonce", lambda: None),
        ("aud", lambda: "another-client"),
        ("azp", lambda: "another-client"),
        ("iss", lambda: "https://another.example"),
        ("sub", lambda: ""),
        ("sub", lambda: "s" * 256),
        ("sub", lambda: 7),
        ("sub", lambda: "a\x00b"),
        ("sub", lambda: "ä"),
    ],
)
def test_an_id_token_that_is_not_for_this_login_is_refused(
    browser: Browser, claim: str, value: Any
) -> None:
    browser.provider.change_claims = lambda claims: claims.update({claim: value()})
    assert_refused(browser, browser.log_in(), 401, "login of Example is not accepted")


def test_an_id_token_signed_with_another_key_is_refused(browser: Browser) -> None:
    browser.provider.foreign_key = True
    assert_refused(browser, browser.log_in(), 401, "is not accepted")


def test_new_keys_of_the_provider_are_read(browser: Browser) -> None:
    browser.log_in()
    browser.client.cookies.clear()
    browser.provider.is_rotating = True
    assert browser.log_in().status_code == 200
    assert browser.provider.hits.count("/jwks") == 2
    assert browser.log_in().status_code == 200
    assert browser.provider.hits.count("/jwks") == 2, "known keys are not read again"


def test_documents_of_another_form_are_reported(browser: Browser) -> None:
    browser.provider.app.view_functions["oidc-provider-mock.jwks"] = lambda: {"keys": 7}
    assert_refused(browser, browser.log_in(), 503, "Example does not respond as it should")


@pytest.mark.parametrize("document", [{}, []])
def test_a_token_response_of_another_form_is_reported(browser: Browser, document: Any) -> None:
    browser.provider.change_answer = lambda _: document
    assert_refused(browser, browser.log_in(), 503, "Example does not respond as it should")


def test_a_mistake_of_the_service_is_not_reported_as_the_providers(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise TypeError("a mistake")

    monkeypatch.setattr("accordion_service.access.oidc_provider.get_well_known_url", fail)
    answer = browser.client.get("/login/oidc")
    assert (answer.status_code, "Example does not respond" in answer.text) == (500, False)


def test_a_wrong_state_is_refused(browser: Browser) -> None:
    callback = browser.provider.log_in(browser.begin(), "1")
    forged = callback.replace(query_of(callback)["state"], "guess")
    assert_refused(browser, browser.client.get(forged), 401, "not the newest login")


def test_a_login_from_another_provider_is_refused(browser: Browser) -> None:
    callback = browser.provider.log_in(browser.begin(), "1")
    answer = browser.client.get(f"{callback}&iss=https%3A%2F%2Fanother.example")
    assert_refused(browser, answer, 401, "does not come from Example")
    assert "/oauth2/token" not in browser.provider.hits, "that provider's code is sent nowhere"


def test_the_issuer_in_a_redirect_is_accepted(browser: Browser) -> None:
    callback = browser.provider.log_in(browser.begin(), "1")
    answer = browser.client.get(f"{callback}&{urlencode({'iss': browser.provider.issuer})}")
    assert answer.status_code == 200, answer.text


def test_a_code_is_sent_only_to_the_provider_where_the_login_began(
    tmp_path: Path, database_url: str, provider: Provider
) -> None:
    with open_browser(tmp_path, provider, database_url=database_url) as before:
        callback = provider.log_in(before.begin(), "1")
    with open_browser(
        tmp_path, provider, database_url=database_url, oidc_client_id="another-client"
    ) as after:
        after.client.cookies.update(before.client.cookies)
        assert_refused(after, after.client.get(callback), 401, "not begun in this browser")
    assert "/oauth2/token" not in provider.hits


@pytest.mark.parametrize(
    ("address", "secure"), [("https://accordion.example", True), ("http://127.0.0.1", False)]
)
def test_cookies_are_secure_behind_a_proxy_that_does_not_say_https(
    tmp_path: Path, database_url: str, provider: Provider, address: str, secure: bool
) -> None:
    with open_browser(tmp_path, provider, database_url=database_url, url=address) as browser:
        browser.client.base_url = browser.client.base_url.copy_with(scheme="http")
        begun = browser.client.get("/login/oidc")
        back = provider.log_in(begun.headers["location"], "1").replace("https:", "http:")
        browser.client.headers["Cookie"] = begun.headers["set-cookie"].partition(";")[0]
        done = browser.client.get(back)
        form = browser.client.post("/login", data={"token": ADMIN})
    assert begun.headers["set-cookie"].endswith("; Secure") == secure
    assert "Signed in" in done.text, done.text
    for answer in (done, form):
        [session] = [one for one in answer.headers.get_list("set-cookie") if "_oidc=" not in one]
        assert session.endswith("; Secure") == secure


def test_a_long_address_of_a_page_does_not_make_the_cookie_too_long(browser: Browser) -> None:
    begun = browser.client.get("/login/oidc", params={"next": f"/{'x' * 4000}"})
    assert len(begun.headers["set-cookie"].partition(";")[0]) < 4096
    answer = browser.client.get(browser.provider.log_in(begun.headers["location"], "1"))
    assert 'content="0; url=/"' in answer.text


def test_a_login_ends_only_in_the_browser_that_began_it(browser: Browser) -> None:
    callback = browser.provider.log_in(browser.begin(), "1")
    browser.client.cookies.clear()
    assert_refused(browser, browser.client.get(callback), 401, "not begun in this browser")


def test_a_code_works_once(browser: Browser) -> None:
    url = browser.begin()
    cookies = dict(browser.client.cookies)
    callback = browser.provider.log_in(url, "1")
    assert browser.client.get(callback).status_code == 200
    browser.client.cookies.clear()
    assert_refused(browser, browser.client.get(callback), 401, "not begun in this browser")
    browser.client.cookies.update(cookies)
    assert_refused(browser, browser.client.get(callback), 401, "refuses the login")


def test_a_login_that_the_user_denies_is_refused(browser: Browser) -> None:
    state = query_of(browser.begin())["state"]
    query = {"state": state, "error": "access_denied", "error_description": "<b>no</b>"}
    answer = browser.client.get("/login/oidc/callback", params=query)
    assert_refused(browser, answer, 401, "refused the login: &lt;b&gt;no&lt;/b&gt;")


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example"]
)
def test_a_login_leads_to_our_own_pages_only(browser: Browser, target: str) -> None:
    answer = browser.log_in(next_page=target)
    assert 'content="0; url=/"' in answer.text
    assert "evil" not in answer.text


def test_a_provider_that_is_down_is_named_and_tokens_still_work(
    tmp_path: Path, database_url: str, require: Require
) -> None:
    with run_provider(require) as gone:
        pass
    with open_browser(tmp_path, gone, database_url=database_url) as browser:
        answer = browser.client.get("/login/oidc")
        assert_refused(browser, answer, 503, "Example does not respond as it should")
        assert gone.issuer not in answer.text, "addresses of the provider are for the log only"
        assert browser.as_admin("GET", "/me").json()["user"] == "admin"


def test_a_provider_that_goes_down_during_a_login_is_named(
    tmp_path: Path, database_url: str, require: Require
) -> None:
    with (
        run_provider(require) as provider,
        open_browser(tmp_path, provider, database_url=database_url) as browser,
    ):
        callback = provider.log_in(browser.begin(), "1")
        provider.app.before_request_funcs[None].insert(0, lambda: ("broken", 500))
        answer = browser.client.get(callback)
        assert_refused(browser, answer, 503, "Example does not respond as it should")


def test_secrets_of_a_login_are_in_no_log(browser: Browser) -> None:
    with capture_logs() as logs:
        callback = browser.provider.log_in(browser.begin(), "1")
        browser.client.get(callback)
    for secret in ("code", "state"):
        assert query_of(callback)[secret] not in str(logs)


def test_without_a_provider_there_is_no_such_login(client: Any) -> None:
    assert "Sign in with" not in client.get("/login").text
    assert client.get("/login/oidc").status_code == 404
    assert client.get("/login/oidc/callback").status_code in {401, 404}
