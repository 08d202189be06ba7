"""Signing in with the admin token, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from accordion_client import Client
from tests.browser.live_service import live_service

TOKEN = "a-token-for-this-test-only"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("home"), admin_token=TOKEN) as service:
        yield service


@pytest.fixture
def page(browser, guarded):
    context = browser.new_context(base_url=guarded.url)
    yield context.new_page()
    context.close()


def sign_in(page, token):
    page.goto("/")
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_whoever_has_no_token_sees_the_form_only(page):
    page.goto("/")
    expect(page).to_have_url("/login")


def test_the_token_opens_the_pages(page):
    sign_in(page, TOKEN)
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    expect(page.locator("#live")).to_have_text("Live")


def test_a_wrong_token_is_refused_with_a_sentence(page):
    sign_in(page, "not-the-token-at-all")
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")


@pytest.fixture
def link(guarded):
    """What `accordion login` prints."""
    return Client(guarded.url, TOKEN).login_link("/cluster")


def test_opening_a_link_signs_in(page, link):
    page.goto(link)
    expect(page).to_have_url("/cluster")


def test_a_link_that_was_used_is_refused_with_a_sentence(page, link, browser, guarded):
    page.goto(link)
    expect(page).to_have_url("/cluster")
    other = browser.new_context(base_url=guarded.url)
    stranger = other.new_page()
    stranger.goto(link)
    expect(stranger.get_by_role("alert")).to_contain_text("This link has already been used")
    other.close()


def test_signing_out_closes_the_pages(page):
    sign_in(page, TOKEN)
    page.get_by_role("button", name="Sign out").click()
    page.goto("/cluster")
    expect(page).to_have_url("/login?next=%2Fcluster")


def test_the_cookie_is_out_of_reach_of_scripts(page):
    sign_in(page, TOKEN)
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
