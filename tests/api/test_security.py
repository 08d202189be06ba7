"""Access control: token, cookie, host and origin, on every method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from accordion_service.access.guards import access_of, check_host
from accordion_service.access.sessions import SESSION_S
from accordion_service.api.app import create_app
from accordion_service.errors import Forbidden, SettingsError
from accordion_service.settings.settings import load_settings
from tests.api.conftest import LOCAL, refused_early
from tests.api.world import DIGITS, Clock

TOKEN = "a-token-of-twenty-chars"
JOBS = "/api/v1/jobs"
DAY_S = 86_400.0
METHODS = ["POST", "PUT", "PATCH", "DELETE"]


@pytest.fixture
def guarded(tmp_path: Path, database_url: str) -> Iterator[TestClient]:
    """A service with a token, and a client that does not know it."""
    settings = load_settings(home=tmp_path, database_url=database_url, admin_token=TOKEN)
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL, follow_redirects=False) as client:
        client.clock = clock  # type: ignore[attr-defined]
        yield client
    app.state.accordion.database.close()


def test_a_bind_beyond_loopback_without_a_token_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"ACCORDION_HOST is 0\.0\.0\.0.*set ACCORDION_ADMIN_TOKEN_FILE.*or bind 127",
    ):
        create_app(load_settings(home=tmp_path, host="0.0.0.0"))
    assert list(tmp_path.iterdir()) == []


def test_without_the_token_nothing_is_told(guarded: TestClient) -> None:
    for path in (JOBS, "/metrics", "/openapi.json", "/docs", f"{JOBS}/0/events"):
        answer = guarded.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path


@pytest.mark.parametrize(
    "header", [f"Bearer {TOKEN}x", "Bearer ", "Basic abc", f"Bearer {TOKEN[:-1]}", "Bearer é"]
)
def test_a_wrong_token_is_refused(guarded: TestClient, header: str) -> None:
    assert guarded.get(JOBS, headers={"Authorization": header.encode()}).status_code == 401


def test_the_token_opens(guarded: TestClient) -> None:
    assert guarded.get(JOBS, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_liveness_and_readiness_need_no_token(guarded: TestClient) -> None:
    assert guarded.get("/livez").status_code == 200
    assert guarded.get("/readyz").status_code == 503


def test_a_token_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert load_settings(home=tmp_path, admin_token_file=file).token() == TOKEN


@pytest.mark.parametrize(
    ("page", "login"),
    [
        ("/", "/login"),
        ("/?label=a%3Ab&cursor=x", "/login?next=%2F%3Flabel%3Da%253Ab%26cursor%3Dx"),
        ("/audit?user=ada", "/login?next=%2Faudit%3Fuser%3Dada"),
        ("/jobs/one", "/login?next=%2Fjobs%2Fone"),
        ("//evil.example/jobs/", "/login"),
    ],
)
def test_a_login_leads_back_to_the_page(guarded: TestClient, page: str, login: str) -> None:
    # The client would take an address that begins with two slashes for that of another host.
    asked = guarded.get(f"http://127.0.0.1{page}", headers={"Accept": "text/html"})
    assert (asked.status_code, asked.headers["location"]) == (303, login)


def test_a_login_gives_a_cookie_that_scripts_cannot_read_and_that_ends(guarded: TestClient) -> None:
    answer = guarded.post("/login", data={"token": TOKEN, "next": "/cluster"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster")
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    assert TOKEN not in answer.headers["set-cookie"]
    assert guarded.get(JOBS).status_code == 200
    guarded.clock.now += SESSION_S  # type: ignore[attr-defined]
    assert guarded.get(JOBS).status_code == 401


def test_a_cookie_is_worth_nothing_after_its_logout_and_other_logins_go_on(
    guarded: TestClient,
) -> None:
    carried = [logged_in(guarded), logged_in(guarded)]
    assert guarded.post("/logout", headers=carried[0]).headers["location"] == "/login"
    assert [guarded.get(JOBS, headers=headers).status_code for headers in carried] == [401, 200]
    assert (
        guarded.get("/", headers={**carried[0], "Accept": "text/html"}).headers["location"]
        == "/login"
    )


def logged_out(guarded: TestClient) -> dict[str, str]:
    """The header of a cookie whose session was ended by a logout."""
    header = logged_in(guarded)
    guarded.post("/logout", headers=header)
    return header


def logged_in(guarded: TestClient) -> dict[str, str]:
    """The header of a cookie of a new session."""
    ((name, cookie),) = guarded.post("/login", data={"token": TOKEN}).cookies.items()
    guarded.cookies.clear()
    return {"Cookie": f"{name}={cookie}"}


@pytest.mark.parametrize(
    "foreign", ['prefs={"theme":"dark"}', "a b=c", "x=[1,2]", "no-value", '"', "=", "q=a\\;b"]
)
def test_a_cookie_of_another_program_on_the_host_locks_nobody_out(
    guarded: TestClient, foreign: str
) -> None:
    own = logged_in(guarded)["Cookie"]
    for cookie in (f"{foreign}; {own}", f"{own}; {foreign}"):
        assert guarded.get(JOBS, headers={"Cookie": cookie}).status_code == 200
    split = guarded.get(JOBS, headers=[("Cookie", foreign), ("Cookie", own)])
    assert split.status_code == 200, "a proxy may split the cookies of HTTP/2"
    assert guarded.post("/logout", headers={"Cookie": f"{foreign}; {own}"}).status_code == 303
    assert guarded.get(JOBS, headers={"Cookie": own}).status_code == 401


def test_two_services_on_one_host_name_do_not_replace_each_others_login(
    guarded: TestClient, tmp_path_factory: pytest.TempPathFactory, empty_url: str
) -> None:
    settings = load_settings(
        home=tmp_path_factory.mktemp("other"), database_url=empty_url, admin_token=TOKEN[::-1]
    )
    other = create_app(settings)
    with TestClient(other, base_url=LOCAL, cookies=guarded.cookies) as beside:
        guarded.post("/login", data={"token": TOKEN})
        answer = beside.post("/login", data={"token": TOKEN[::-1]}, follow_redirects=False)
        # A browser keeps cookies by host name, whatever the port.
        guarded.cookies.update(answer.cookies)
        assert guarded.get(JOBS).status_code == 200
    other.state.accordion.database.close()


def test_a_cookie_from_a_clock_that_was_ahead_does_not_outlive_a_session(
    guarded: TestClient,
) -> None:
    clock = guarded.clock  # type: ignore[attr-defined]
    clock.jump(DAY_S)
    header = logged_in(guarded)
    clock.jump(-DAY_S)
    assert guarded.get(JOBS, headers=header).status_code == 401


def test_a_cookie_stays_valid_when_the_clock_is_corrected_by_seconds(guarded: TestClient) -> None:
    header, clock = logged_in(guarded), guarded.clock  # type: ignore[attr-defined]
    clock.jump(-5)
    assert guarded.get(JOBS, headers=header).status_code == 200


def test_an_empty_authorization_header_does_not_bring_back_a_session(guarded: TestClient) -> None:
    header = logged_out(guarded)
    assert guarded.get(JOBS, headers={**header, "Authorization": ""}).status_code == 401


def test_an_ended_session_stays_ended_when_a_clock_that_was_ahead_is_set_back(
    guarded: TestClient,
) -> None:
    header, clock = logged_out(guarded), guarded.clock  # type: ignore[attr-defined]
    clock.jump(DAY_S)
    logged_out(guarded)
    clock.jump(-DAY_S)
    assert guarded.get(JOBS, headers=header).status_code == 401


def test_a_database_that_does_not_answer_is_unavailable_to_a_browser_too(
    guarded: TestClient,
) -> None:
    guarded.post("/login", data={"token": TOKEN})

    engine = guarded.app.state.accordion.database.engine  # type: ignore[attr-defined]

    def fail(*_: object) -> None:
        raise engine.dialect.dbapi.OperationalError("disk I/O error")

    event.listen(engine, "do_execute", fail)
    answer = guarded.get(JOBS)
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "2")


def test_a_forged_cookie_is_refused(guarded: TestClient) -> None:
    name = logged_in(guarded)["Cookie"].partition("=")[0]
    guarded.cookies.set(name, "9999999999." + "0" * 64)
    assert guarded.get(JOBS).status_code == 401


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example"])
def test_a_login_leads_to_our_own_pages_only(guarded: TestClient, target: str) -> None:
    assert guarded.post("/login", data={"token": TOKEN, "next": target}).headers["location"] == "/"


def test_a_wrong_login_leads_back_to_the_form(guarded: TestClient) -> None:
    answer = guarded.post("/login", data={"token": "guess"})
    assert answer.headers["location"] == "/login?failed=1"
    assert "set-cookie" not in answer.headers


def test_a_browser_without_a_login_is_led_to_the_form(guarded: TestClient) -> None:
    assert guarded.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
@refused_early
def test_a_write_from_another_site_is_refused_on_every_method(
    client: TestClient, method: str, headers: dict[str, str]
) -> None:
    answer = client.request(method, f"{JOBS}/0/overrides/0", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_write_from_our_own_pages_is_taken(client: TestClient) -> None:
    headers = {"Origin": LOCAL, "Sec-Fetch-Site": "same-origin"}
    assert client.post(JOBS, json=DIGITS, headers=headers).status_code == 201


@pytest.mark.parametrize("method", ["GET", *METHODS])
@refused_early
def test_a_page_that_calls_itself_our_name_is_refused(client: TestClient, method: str) -> None:
    answer = client.request(method, JOBS, headers={"Host": "rebound.example:8080"})
    assert answer.status_code == 403
    assert "add it to ACCORDION_ALLOWED_HOSTS" in answer.json()["detail"]


def test_the_host_of_the_service_url_is_served_and_others_are_not(tmp_path: Path) -> None:
    given = {"home": tmp_path, "admin_token": TOKEN, "url": "https://user@Accordion.example:8443/x"}
    access = access_of(load_settings(**given, allowed_hosts="api"))
    for host in ("accordion.example", "accordion.example:8443", "api:8080", "localhost"):
        check_host(access, JOBS, {"host": host})
    with pytest.raises(Forbidden, match="add it to ACCORDION_ALLOWED_HOSTS"):
        check_host(access, JOBS, {"host": "10.0.0.7:8080"})
    for probe in ("/livez", "/readyz"):
        check_host(access, probe, {"host": "10.0.0.7:8080"})
    assert access_of(load_settings(home=tmp_path, admin_token=TOKEN)).hosts is None


def test_a_service_url_without_a_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ACCORDION_URL is 'example:80', which has no host"):
        access_of(load_settings(home=tmp_path, admin_token=TOKEN, url="example:80"))


def test_no_other_origin_may_read(client: TestClient) -> None:
    answer = client.get(JOBS, headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_forbids_foreign_scripts(client: TestClient) -> None:
    for path in (JOBS, "/nothing", "/livez"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_documentation_needs_no_other_host(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "/static/docs/swagger-ui-bundle.js" in page
    assert "https://" not in page
    assert client.get("/static/docs/swagger-ui-bundle.js").status_code == 200


def test_a_request_id_is_given_back_and_logged(client: TestClient) -> None:
    with capture_logs(processors=[merge_contextvars]) as logs:
        assert (
            client.get("/livez", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"]
            == "mine-1"
        )
    assert [line["request_id"] for line in logs if line["event"] == "request"] == ["mine-1"]


def test_a_request_id_that_could_forge_log_lines_is_replaced(client: TestClient) -> None:
    assert (
        len(
            client.get("/livez", headers={"X-Request-ID": "not a good one"}).headers["x-request-id"]
        )
        == 36
    )


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has 5 characters; give at least 16"):
        create_app(load_settings(home=tmp_path, admin_token="short"))


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://]"])
@refused_early
def test_an_origin_that_is_no_address_is_foreign(client: TestClient, origin: str) -> None:
    assert client.post(JOBS, json=DIGITS, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("host", ["[::1].evil.com", "[::1", "[::1]evil:80"])
@refused_early
def test_a_name_that_begins_like_ours_is_refused(client: TestClient, host: str) -> None:
    assert client.get(JOBS, headers={"Host": host}).status_code == 403


def test_our_own_address_is_served_with_and_without_a_port(client: TestClient) -> None:
    assert {
        client.get(JOBS, headers={"Host": host}).status_code for host in ("[::1]", "[::1]:80")
    } == {200}


@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000 + "9" * 9])
@refused_early
def test_unreadable_content_length_is_too_large(client: TestClient, length: str) -> None:
    answer = client.post(JOBS, content=b"{}", headers={"Content-Length": length})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_the_metrics_token_reads_metrics_and_nothing_else(
    tmp_path: Path, database_url: str
) -> None:
    scrape = "scrape-" + TOKEN
    settings = load_settings(
        home=tmp_path, database_url=database_url, admin_token=TOKEN, metrics_token=scrape
    )
    app = create_app(settings)
    with TestClient(
        app, base_url=LOCAL, headers={"Authorization": f"Bearer {scrape}"}
    ) as prometheus:
        assert prometheus.get("/metrics").status_code == 200
        assert [prometheus.get(path).status_code for path in (JOBS, "/docs", "/metrics/x")] == [
            401,
            401,
            401,
        ]
        assert prometheus.post(JOBS, json=DIGITS).status_code == 401
    app.state.accordion.database.close()
