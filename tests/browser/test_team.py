"""What the pages show of other users."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from accordion_client import Client
from accordion_service.schemas.overrides import OverrideRequest
from tests.browser.live_service import live_service

ADMIN = "a-token-for-this-test-only"
LONG = {"task": {"name": "digits-mlp"}, "training": {"epochs": 2000}}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("home"), admin_token=ADMIN) as service:
        yield service


@pytest.fixture(scope="module")
def admin(guarded):
    with Client(guarded.url, ADMIN) as client:
        yield client


@pytest.fixture(scope="module")
def ada(guarded, admin):
    """The client of a user with the role of an editor, and her token."""
    token = admin.add_token("browser", user=admin.add_user("ada").name).token
    with Client(guarded.url, token) as client:
        yield client, token


@pytest.fixture(scope="module")
def job(ada):
    """A job of the user that trains."""
    client, _ = ada
    found = client.submit({**LONG, "name": "hers"})
    yield found
    client.cancel(found.id)


@pytest.fixture
def open_as(browser, guarded):
    """`open_as(token)` is a page of a browser that is signed in with a token."""
    contexts = []

    def sign_in(token):
        context = browser.new_context(base_url=guarded.url)
        contexts.append(context)
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Token", exact=True).fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        return page

    yield sign_in
    for context in contexts:
        context.close()


def test_an_admin_sees_whose_job_and_whose_override_it_is(open_as, ada, job):
    client, _ = ada
    client.override(job.id, OverrideRequest(level="low", reason="the loss jumped"))
    page = open_as(ADMIN)
    expect(page.get_by_role("row", name="hers")).to_contain_text("ada · digits-mlp")
    page.get_by_role("link", name="hers").click()
    expect(page.get_by_text("of ada", exact=True)).to_be_visible()
    expect(page.locator("#overrides")).to_contain_text("the loss jumped, by ada")


def test_users_see_their_own_jobs_without_their_name(open_as, ada, job, admin):
    other = admin.submit({**LONG, "name": "secret", "workers": {"cpus": 999}})
    page = open_as(ada[1])
    expect(page.get_by_role("button", name="Sign out ada")).to_be_visible()
    row = page.get_by_role("row", name="hers")
    expect(row).to_be_visible()
    expect(row).not_to_contain_text("ada ·")
    expect(page.get_by_text("secret")).to_have_count(0)
    page.goto(f"/jobs/{other.id}")
    expect(page.get_by_text("There is no job")).to_be_visible()
    page.goto("/cluster")
    expect(page.locator("#queue")).to_contain_text("a job of admin")
    admin.cancel(other.id)


def test_the_cluster_page_shows_quotas_and_what_is_used(open_as, ada, admin, job):
    admin.set_quota(user="ada", workers=8)
    admin.set_quota(label="team:vision", gpus=4)
    page = open_as(ada[1])
    page.goto("/cluster")
    expect(page.get_by_role("row", name="user ada")).to_contain_text("2 of 8")
    expect(page.get_by_role("row", name="label team:vision")).to_contain_text("0 of 4")
    admin.remove_quota(user="ada")
    admin.remove_quota(label="team:vision")
    expect(page.get_by_role("heading", name="Quotas")).to_be_hidden()


def test_only_operators_and_admins_see_the_audit_page(open_as, ada, job):
    client, token = ada
    client.change(job.id, priority=40)
    page = open_as(ADMIN)
    page.goto(f"/jobs/{job.id}")
    page.get_by_role("link", name="who changed the job").click()
    expect(page.get_by_label("Subject")).to_have_value(job.id)
    row = page.get_by_role("row", name="job.changed")
    for text in ("ada", "priority: 50 → 40", token.split("_")[1]):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text(re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}$"))
    expect(row.get_by_role("link")).to_have_attribute("href", f"/jobs/{job.id}")
    page.get_by_label("Action").fill("job.submitted")
    page.get_by_label("Action").press("Enter")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#rows")).to_contain_text("name: hers")
    client.override(job.id, OverrideRequest(level="low", reason="none"))
    page.get_by_label("Action").fill("override.added")
    page.get_by_label("Action").press("Enter")
    expect(page.locator("#rows")).to_contain_text("reason: none")
    page = open_as(token)
    expect(page.get_by_role("link", name="Cluster")).to_be_visible()
    expect(page.get_by_role("link", name="Audit log")).to_have_count(0)
    assert page.goto("/audit").status == 403
    expect(page.get_by_text("this needs the scope 'audit'")).to_be_visible()


def test_the_audit_page_filters_by_token_request_and_time(open_as, ada, admin, job):
    token_id = ada[1].split("_")[1]
    [entry] = admin.audit(action="job.submitted", subject=job.id).items
    page = open_as(ADMIN)
    page.goto("/audit")
    rows, none = page.locator("#rows tr"), page.get_by_text("No such entries.")
    page.get_by_label("Request").fill(entry.request_id)
    page.get_by_label("Request").press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_label("Token").fill(token_id)
    page.get_by_label("Token").press("Enter")
    expect(page).to_have_url(re.compile(f"token_id={token_id}&request_id={entry.request_id}$"))
    expect(rows).to_have_count(1)
    page.get_by_label("Before").fill("2020-01-31T22:00")
    expect(none).to_be_visible()
    expect(page).to_have_url(re.compile(r"time_before=2020-01-\d\dT\d\d%3A\d\d%3A00Z$"))
    page.reload()
    expect(page.get_by_label("Before")).to_have_value(re.compile("^2020-01-31T22:00"))
    page.get_by_label("Before").fill("")
    page.get_by_label("From").fill("2020-01-31T22:00")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("time_after="))


def test_only_those_who_see_all_jobs_filter_them_by_owner(open_as, ada, job, admin):
    other = admin.submit({**LONG, "name": "not-hers", "workers": {"cpus": 999}})
    page = open_as(ADMIN)
    expect(page.locator("#rows")).to_contain_text("not-hers")
    page.get_by_label("Owner").fill("ada")
    page.get_by_label("Owner").press("Enter")
    expect(page.locator("#rows")).not_to_contain_text("not-hers")
    expect(page.get_by_role("row", name="hers")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?owner=ada$"))
    admin.cancel(other.id)
    expect(open_as(ada[1]).get_by_label("Owner")).to_have_count(0)
