"""A service with a scripted cluster, and Debian's Chromium to look at it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.browser.live_service import LiveService, live_service

CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 120_000
"""How long a page may take on a machine that does much else."""

LONG = 2000
"""Epochs of a job that does not end by itself while a test looks at it."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[LiveService]:
    with live_service(tmp_path_factory.mktemp("home")) as service:
        yield service


@pytest.fixture(scope="module")
def browser(require) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The shell has no windows, which would take a fifth of the time.
        program = require("chromium-headless-shell", "chromium")
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the page said when its test failed."""
    report = yield
    watched = getattr(item, "funcargs", {}).get("watched")
    if report.when == "call" and report.failed and watched:
        report.sections.append(("the page", watched.describe()))
    return report


class Watched:
    """A page, and everything it did that a page of ours must not do."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("request", lambda request: self._see(request.url, base_url))

    def _hear(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(f"console {kind}: {text}")

    def _see(self, url: str, base_url: str) -> None:
        if not url.startswith((base_url, "data:", "blob:")):
            self.faults.append(f"request to {url}")

    def describe(self) -> str:
        """Its faults, its text and the signs in its charts."""
        body, signs = self.page.locator("body"), self.page.locator(".annotation")
        try:
            return f"{self.faults}\n{body.inner_text()}\nsigns: {signs.all_inner_texts()}"
        except Error as error:
            return f"{self.faults}\n{error}"


@pytest.fixture
def watched(browser, service) -> Iterator[Watched]:
    context = browser.new_context(base_url=service.url)
    context.set_default_timeout(PATIENCE_MS)
    yield Watched(context.new_page(), service.url)
    context.close()


@pytest.fixture
def page(watched) -> Iterator[Page]:
    """A page; that it did nothing wrong is asked when the test is over."""
    yield watched.page
    assert watched.faults == []


@contextmanager
def training(service: LiveService, name: str) -> Iterator[str]:
    """Id of a job that trains until it is cancelled at the end."""
    job_id = service.submit(name, epochs=LONG)
    service.wait_for_epochs(job_id, 2)
    yield job_id
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    service.wait_for_end(job_id)


@pytest.fixture(scope="module")
def running(service) -> Iterator[str]:
    """A job to look at, one for the tests of a file."""
    with training(service, "running") as job_id:
        yield job_id


@pytest.fixture
def steered(service) -> Iterator[str]:
    """A job that a test may change."""
    with training(service, "steered") as job_id:
        yield job_id
        service.runtime.stuck.discard(job_id)
        service.runtime.slow_start = 0


def open_epochs_table(page):
    """Open the table of epochs: the page grows while its charts are drawn, so a click may miss."""
    details = page.locator("#epochs-details")
    while details.get_attribute("open") is None:
        page.get_by_text("Epochs as a table").click()
