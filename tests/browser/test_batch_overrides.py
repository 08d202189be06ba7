"""Overrides of the global batch, and of local steps, from the page of a job."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import LONG
from tests.browser.live_service import wait_until
from tests.browser.test_marks import SHADED


@pytest.fixture
def grown(service):
    """A job that trains with batch levels, until it is cancelled at the end."""
    job_id = service.submit("grown", epochs=LONG, batch={"low": 64, "high": 512})
    service.wait_for_epochs(job_id, 1)
    yield job_id
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    service.wait_for_end(job_id)


def choose_batch(page, job_id, size):
    page.goto(f"/jobs/{job_id}")
    page.locator("#target").select_option("batch")
    page.locator("#batch").select_option(size)


def send(page):
    page.get_by_role("button", name="Override", exact=True).click()


def test_the_form_overrides_the_global_batch(page, grown):
    choose_batch(page, grown, "high")
    for hidden in ("Level", "Options", "Layers", "Samples per step"):
        expect(page.get_by_label(hidden, exact=True)).to_be_hidden()
    expect(page.locator("#batch-hint")).to_have_text("samples per step; low: 64, high: 512")
    expect(page.locator("#call")).to_have_text(
        f"POST /api/v1/jobs/{grown}/overrides\n"
        '{"target":"batch","level":"high","apply_at":"next_step"}'
    )
    send(page)
    row = page.locator("#overrides tr")
    expect(row).to_contain_text("Applied")
    expect(row).to_contain_text("global batch")
    expect(page.locator("#schedule-batch")).to_contain_text(
        "Global batch: 512 samples per step (high), decided by override 1; the policy would choose"
    )
    expect(page.locator("#changes")).to_contain_text("Override 1: batch high")
    page.get_by_role("button", name="Cancel override 1").click()
    expect(page.locator("#schedule-batch")).to_contain_text("decided by policy")


def test_the_form_overrides_the_global_batch_by_a_number_of_samples(page, grown):
    choose_batch(page, grown, "samples")
    expect(page.locator("#samples-hint")).to_have_text(
        "17 to 10,000,000, so that every worker gets a part"
    )
    page.get_by_label("Samples per step", exact=True).fill("96")
    send(page)
    expect(page.locator("#schedule-batch")).to_contain_text(
        "Global batch: 96 samples per step (custom size), decided by override 1"
    )


def test_a_batch_that_is_too_small_is_refused_with_the_limit(watched, grown):
    page = watched.page
    choose_batch(page, grown, "samples")
    page.get_by_label("Samples per step", exact=True).fill("16")
    send(page)
    expect(page.locator("#override-said")).to_contain_text("the batch needs at least 17")


def test_the_least_batch_follows_the_number_of_workers(page, service, grown):
    choose_batch(page, grown, "samples")
    expect(page.locator("#samples-hint")).to_contain_text("17 to")
    service.client.post(
        f"/api/v1/jobs/{grown}/resize", json={"min": 1, "max": 4}
    ).raise_for_status()
    expect(page.locator("#samples-hint")).to_contain_text("49 to")


def test_a_job_has_the_form_for_layers_again(page, grown):
    choose_batch(page, grown, "samples")
    page.locator("#target").select_option("compression")
    expect(page.get_by_label("Samples per step", exact=True)).to_be_hidden()
    send(page)
    expect(page.locator("#overrides tr")).to_contain_text("Applied")
    expect(page.locator("#overrides tr")).to_contain_text("*")


@pytest.fixture
def rounds(service):
    """A job that trains with local steps, until it is cancelled at the end."""
    ladder = {"compression": {"method": "half"}, "local_steps": {"low": 4, "high": 16}}
    job_id = service.submit("rounds", epochs=LONG, **ladder)
    service.wait_for_epochs(job_id, 1)
    yield job_id
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    service.wait_for_end(job_id)


def test_the_form_overrides_local_steps_by_a_level_or_a_number(page, rounds):
    page.goto(f"/jobs/{rounds}")
    options = page.locator("#target option")
    optimizer = ["learning rate", "weight decay", "gradient norm to clip at"]
    expect(options).to_have_text(["compression of layers", "local steps", *optimizer])
    page.locator("#target").select_option("local_steps")
    for hidden in ("Level", "Options", "Layers", "Steps of a round"):
        expect(page.get_by_label(hidden, exact=True)).to_be_hidden()
    hint = "optimizer steps between two exchanges; low: 4, high: 16"
    expect(page.locator("#rounds-hint")).to_have_text(hint)
    page.locator("#rounds").select_option("steps")
    expect(page.locator("#steps-hint")).to_contain_text("to 16")
    page.get_by_label("Steps of a round", exact=True).fill("9")
    expect(page.locator("#call")).to_contain_text(
        '{"target":"local_steps","level":9,"apply_at":"next_step"}'
    )
    send(page)
    row = page.locator("#overrides tr")
    expect(row).to_contain_text("Applied")
    expect(row).to_contain_text("local steps")
    expect(page.locator("#schedule-rounds")).to_have_text(
        "Local steps: each worker takes 9 steps between two exchanges, decided by override 1; the"
        " policy would choose 4."
    )
    expect(page.locator("#changes")).to_contain_text("Override 1: local steps 9")
    wait_until(lambda: len(page.evaluate(SHADED) or []) == 1, "the charts are shaded")
    page.get_by_role("button", name="Cancel override 1").click()
    expect(page.locator("#schedule-rounds")).to_have_text(
        "Local steps: each worker takes 4 steps between two exchanges."
    )


def test_a_job_without_batch_levels_has_no_choice_of_the_batch(page, running):
    page.goto(f"/jobs/{running}")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#target option[value=compression]")).to_have_count(1)
    expect(page.locator("#target option[value=batch]")).to_have_count(0)
    expect(page.locator("#schedule-batch")).to_be_hidden()
