"""Logins through an OpenID Connect provider, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from accordion_client.commands.loopback_listener import open_listener
from tests.api.oidc_world import oidc_settings, run_provider
from tests.browser.live_service import live_service

pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config")  # of the provider


@pytest.fixture(scope="module")
def provider(require):
    with run_provider(require) as provider:
        # Another site than that of the service: a redirect from there brings no strict cookie.
        provider.issuer = provider.issuer.replace("127.0.0.1", "localhost")
        provider.set_user("1", preferred_username="ada", groups=["ml"])
        yield provider


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, provider):
    settings = oidc_settings(provider.issuer)
    with live_service(tmp_path_factory.mktemp("home"), **settings) as service:
        yield service


@pytest.fixture
def page(browser, guarded):
    context = browser.new_context(base_url=guarded.url)
    yield context.new_page()
    context.close()


def sign_in(page):
    page.get_by_role("link", name="Sign in with Example").click()
    page.locator("input[name=sub]").fill("1")
    page.locator("input[name=sub]").press("Enter")


def test_a_user_of_the_provider_signs_in(page):
    page.goto("/login?next=/cluster")
    sign_in(page)
    expect(page).to_have_url("/cluster")
    expect(page.get_by_role("button", name="Sign out ada")).to_be_visible()


def test_a_user_of_the_provider_logs_in_a_command_line(page):
    with open_listener(0) as listener:
        challenge = "c" * 43
        page.goto(f"/login/command-line?port={listener.port}&challenge={challenge}&label=laptop")
        held = []
        page.route("**/command_line.js", lambda route: held.append(route))
        sign_in(page)
        expect(page.get_by_text("Give “laptop” a token of user ada?")).to_be_visible()
        button = page.get_by_role("button", name="Log in")
        expect(button).to_be_disabled()  # a click would reload the page until its script runs
        while not held:
            page.wait_for_timeout(20)
        held[0].continue_()
        button.click()
        assert len(listener.wait_for_code(30.0)) > 40
        expect(page.get_by_text("You can close this page.")).to_be_visible()
