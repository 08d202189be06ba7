"""The form of a job sets its optimizer, and the page tells what holds."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.live_service import wait_until
from tests.browser.test_marks import SHADED


def test_the_form_halves_the_learning_rate_and_gives_it_back(page, steered):
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#setting-field")).to_be_hidden()
    page.locator("#target").select_option("lr")
    expect(page.locator("#layers-field")).to_be_hidden()
    page.locator("#setting").fill("0.5")
    expect(page.locator("#call")).to_have_text(
        f"POST /api/v1/jobs/{steered}/overrides\n"
        '{"target":"lr","level":{"factor":0.5},"apply_at":"next_step"}'
    )
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#schedule-optimizer")).to_have_text(
        "Optimizer: lr_factor 0.5, decided by override 1."
    )
    expect(page.locator("#overrides tr").first).to_contain_text("learning rate")
    wait_until(lambda: len(page.evaluate(SHADED) or []) == 1, "charts shade it")
    page.get_by_role("button", name="Cancel override 1").click()
    expect(page.locator("#schedule-optimizer")).to_be_hidden()


def test_a_number_out_of_range_is_refused_with_the_range(watched, steered):
    page = watched.page
    page.goto(f"/jobs/{steered}")
    page.locator("#target").select_option("clip_norm")
    expect(page.locator("#rate-kind-field")).to_be_hidden()
    page.locator("#setting").fill("0")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#override-said")).to_contain_text("clip_norm is 0; give a number above 0")
    assert all("status of 422" in fault for fault in watched.faults)
