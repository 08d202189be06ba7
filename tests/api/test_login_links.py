"""One-time login links: authorization, single use, and expiry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from accordion_service.api.app import create_app
from accordion_service.settings.settings import load_settings
from tests.api.conftest import LOCAL
from tests.api.world import Clock

TOKEN = "a-token-of-twenty-chars"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LINKS = "/api/v1/login-links"


@pytest.fixture
def browser(tmp_path: Path, database_url: str) -> Iterator[TestClient]:
    """A browser that does not know the token."""
    settings = load_settings(home=tmp_path, database_url=database_url, admin_token=TOKEN)
    app = create_app(settings, clock := Clock())
    with TestClient(app, base_url=LOCAL, follow_redirects=False) as client:
        client.clock = clock  # type: ignore[attr-defined]
        yield client
    app.state.accordion.database.close()


def new_link(browser: TestClient, **body: str) -> str:
    """Create a link with the admin token and return its path."""
    answer = browser.post(LINKS, json=body, headers=BEARER)
    assert answer.status_code == 201
    return str(answer.json()["path"])


def follow(browser: TestClient, path: str) -> tuple[int, str]:
    """Submit the form of the login page; return status and redirect target."""
    form = dict(pair.split("=", 1) for pair in path.partition("?")[2].split("&"))
    answer = browser.post("/login", data=form)
    return answer.status_code, answer.headers["location"]


def test_a_link_signs_in_and_leads_to_its_page(browser: TestClient) -> None:
    assert follow(browser, new_link(browser, next="/cluster")) == (303, "/cluster")
    assert browser.get("/api/v1/jobs").status_code == 200


def test_a_link_works_once(browser: TestClient) -> None:
    link = new_link(browser)
    follow(browser, link)
    browser.cookies.clear()
    assert follow(browser, link) == (303, "/login?failed=link")
    assert browser.get("/api/v1/jobs").status_code == 401
    assert "has already been used or has expired" in browser.get("/login?failed=link").text


def test_a_used_link_still_redirects_a_logged_in_browser(browser: TestClient) -> None:
    link = new_link(browser)
    follow(browser, link)
    assert follow(browser, link) == (303, "/")


def test_looking_at_a_link_does_not_use_it_up(browser: TestClient) -> None:
    link = new_link(browser)
    assert "login.js" in browser.get(link).text
    assert follow(browser, link) == (303, "/")


@pytest.mark.parametrize("seconds", [901.0, -3600.0])
def test_a_link_ends_after_its_time_and_when_the_clock_was_set_back(
    browser: TestClient, seconds: float
) -> None:
    link = new_link(browser)
    browser.clock.now += seconds  # type: ignore[attr-defined]
    assert follow(browser, link) == (303, "/login?failed=link")


def test_a_link_is_created_only_with_the_token(browser: TestClient) -> None:
    assert browser.post(LINKS, json={}).status_code == 401


@pytest.mark.parametrize("link", ["", "guess", "é" * 40])
def test_a_link_that_was_never_made_is_refused(browser: TestClient, link: str) -> None:
    assert follow(browser, f"/login?link={link}")[1].startswith("/login?failed=")


def test_a_link_leads_to_pages_of_ours_only(browser: TestClient) -> None:
    for target in ("https://evil.example", "//evil.example", "/\\evil.example"):
        assert browser.post(LINKS, json={"next": target}, headers=BEARER).status_code == 422


def test_a_link_appears_in_no_log(browser: TestClient) -> None:
    with capture_logs() as logs:
        link = new_link(browser)
        browser.get(link)
        follow(browser, link)
    assert link.partition("link=")[2] not in str(logs)


def test_a_service_without_a_token_gives_the_page_itself(client: TestClient) -> None:
    answer = client.post(LINKS, json={"next": "/cluster"})
    assert answer.json() == {"path": "/cluster", "expires_at": None}
