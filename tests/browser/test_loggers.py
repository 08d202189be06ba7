"""The loggers of a job on its page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.live_service import wait_until

QUICK_TIMERS = """const timer = window.setTimeout;
window.setTimeout = (run, ms) => timer(run, ms / 50);"""
"""Script with which a page waits for a fiftieth of what it would."""
RUN = "https://mlflow.test/#/experiments/1/runs/2"


def view(state, **changes):
    """A logger as the service returns it."""
    return {
        "number": 0,
        "kind": "mlflow",
        "state": state,
        "location": RUN,
        "message": "",
        "failures": 0,
        "next_epoch": 3,
        "sent_at": "2027-01-31T22:00:00Z",
    } | changes


@pytest.fixture(scope="module")
def logged(service):
    """A job that has ended, with a logger that has sent all of it."""
    job_id = service.submit("logged", epochs=2, loggers=[{"kind": "tensorboard"}])
    service.wait_for_end(job_id)
    path = f"/api/v1/jobs/{job_id}/loggers"
    wait_until(
        lambda: service.client.get(path).json()["items"][0]["state"] == "DONE",
        "the logger has sent everything",
    )
    return job_id


def test_the_page_says_what_was_sent_and_where_the_files_are(page, service, logged):
    page.goto(f"/jobs/{logged}")
    row = page.locator("#loggers tr")
    [logger] = service.client.get(f"/api/v1/jobs/{logged}/loggers").json()["items"]
    for text in ("TensorBoard", "Done", "2", logger["location"]):
        expect(row).to_contain_text(text)
    expect(row.get_by_role("link")).to_have_count(0)


def test_the_page_follows_a_logger_that_fails_and_recovers(page, logged):
    # More answers than requests of a page that opens: the others are of its timer.
    answers = [[view("FAILING", failures=1, message="busy")]] * 4 + [[view("DONE", next_epoch=5)]]
    page.add_init_script(QUICK_TIMERS)
    page.route(
        "**/loggers",
        lambda route: route.fulfill(
            json={"items": answers.pop(0) if len(answers) > 1 else answers[0]}
        ),
    )
    page.goto(f"/jobs/{logged}")
    row = page.locator("#loggers tr")
    expect(row).to_contain_text("Done")
    expect(row).to_contain_text("MLflow")
    expect(row.locator("[data-label='Epochs sent']")).to_have_text("5")
    expect(row.get_by_role("link")).to_have_attribute("href", RUN)


def test_the_page_says_why_a_logger_fails(page, logged):
    failing = view("FAILING", failures=2, message="the server answered 502", sent_at=None)
    page.route("**/loggers", lambda route: route.fulfill(json={"items": [failing]}))
    page.goto(f"/jobs/{logged}")
    row = page.locator("#loggers tr")
    expect(row).to_contain_text("Failing")
    expect(row).to_contain_text("2 failed attempts in a row; newest: the server answered 502")
    expect(row.locator("[data-label='Last sent']")).to_have_text("–")


def test_a_location_that_is_no_address_of_the_web_is_no_link(page, logged):
    items = [view("DONE", location=place) for place in ("javascript:alert(1)", "/runs/1", "", RUN)]
    page.route("**/loggers", lambda route: route.fulfill(json={"items": items}))
    page.goto(f"/jobs/{logged}")
    expect(page.locator("#loggers tr")).to_have_count(4)
    expect(page.locator("#loggers a")).to_have_count(1)
    expect(page.locator("#loggers a")).to_have_attribute("href", RUN)


def test_a_job_without_loggers_has_nothing_about_them(page, running):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"/jobs/{running}")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.get_by_role("heading", name="Loggers")).to_have_count(0)
    assert [url for url in asked if url.endswith("/loggers")] == []
