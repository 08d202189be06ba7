"""No page has a fault that axe finds: names, roles, contrast, and what a keyboard reaches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import LONG, PATIENCE_MS, open_epochs_table, training

WIDE, NARROW = {"width": 1300, "height": 900}, {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def jobs(service):
    """A job that trains under an override, one that failed and one that waits."""
    failed = service.submit("failing", epochs=LONG)
    with training(service, "trains") as running:
        override = {"level": "low", "layers": ["fc1*"], "reason": "the loss jumped"}
        service.client.post(f"/api/v1/jobs/{running}/overrides", json=override)
        service.runtime.fail(failed, "ValueError: broken on purpose")
        service.wait_for_end(failed)
        waiting = service.submit("waits", workers={"cpus": 4, "min": 4, "max": 4})
        yield SimpleNamespace(running=running, failed=failed, waiting=waiting)


@pytest.fixture(params=[("light", WIDE), ("dark", NARROW)], ids=["light", "dark"])
def page(browser, service, request):
    scheme, size = request.param
    context = browser.new_context(base_url=service.url, color_scheme=scheme, viewport=size)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def check(page, part=None):
    found = Axe().run(page, context=part).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []


@pytest.mark.parametrize("path", ["/login?failed=token", "/jobs/none", "/audit", "/?status=LOST"])
def test_a_page_without_jobs_has_no_fault(page, jobs, path):
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    check(page)


@pytest.mark.parametrize("path", ["/", "/cluster"])
def test_a_list_has_no_fault(page, jobs, path):
    page.goto(path)
    expect(page.get_by_role("link", name="waits")).to_be_visible()
    check(page)


def test_the_page_of_a_job_that_trains_has_no_fault(page, jobs):
    page.goto(f"/jobs/{jobs.running}")
    expect(page.locator("#overrides")).to_contain_text("Applied")
    open_epochs_table(page)
    page.get_by_label("Layers", exact=True).fill("nothing*")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#override-said")).to_contain_text("no layer matches")
    check(page)
    page.locator("#cancel").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page, "dialog[open]")


@pytest.mark.parametrize("state", ["failed", "waiting"])
def test_the_page_of_a_job_that_does_not_train_has_no_fault(page, jobs, state):
    page.goto(f"/jobs/{getattr(jobs, state)}")
    expect(page.locator("#live")).to_have_text({"failed": "Finished", "waiting": "Live"}[state])
    check(page)


def test_a_report_has_no_fault(page, jobs):
    page.goto(f"/api/v1/jobs/{jobs.failed}/report")
    expect(page.locator("#loss .main-svg").first).to_be_visible()
    for summary in page.locator("summary").all():
        summary.click()
    check(page)
