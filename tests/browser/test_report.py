"""The report of a job, opened from a disk without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from accordion_client.commands.group_report import collect_groups, describe_groups
from accordion_service.api.dashboard.report_frame import build_page
from accordion_service.api.dashboard.report_page import build_report
from tests.browser.conftest import Watched
from tests.browser.live_service import LiveService
from tests.unit.service.report_samples import (
    BEGIN,
    make_decision,
    make_epoch,
    make_event,
    make_schedule,
    make_source,
)
from tests.unit.service.test_group_report import JOB, SEEDS

CHARTS = ("loss", "metrics", "traffic", "phases", "change", "rate", "workers", "regimes", "levels")


@pytest.fixture(scope="module")
def reported(service: LiveService) -> str:
    """A job that has ended, with an override and another number of workers."""
    job_id = service.submit("reported", epochs=12)
    service.wait_for_epochs(job_id, 2)
    override = {"level": "low", "layers": ["fc1*"], "until": 6, "reason": "<b>compare</b>"}
    service.client.post(f"/api/v1/jobs/{job_id}/overrides", json=override).raise_for_status()
    resize = {"min": 3, "max": 3}
    service.client.post(f"/api/v1/jobs/{job_id}/resize", json=resize).raise_for_status()
    service.wait_for_end(job_id)
    return job_id


def expect_charts(watched: Watched) -> None:
    for chart in CHARTS:
        expect(watched.page.locator(f"#{chart} .main-svg").first).to_be_visible()
    expect(watched.page.locator("#marks")).to_contain_text("resize")
    assert watched.faults == []


def test_a_report_opens_from_a_disk_without_a_network(
    browser: Browser, service: LiveService, reported: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(
        service.client.get(f"/api/v1/jobs/{reported}/report").raise_for_status().content
    )
    context = browser.new_context(offline=True)
    watched = Watched(context.new_page(), file.as_uri())
    watched.page.goto(file.as_uri())
    expect_charts(watched)
    row = watched.page.locator("#overrides-table tbody tr")
    expect(row).to_contain_text("<b>compare</b>")
    expect(watched.page.locator("#epochs-table tbody tr")).to_have_count(12)
    context.close()


def test_a_jobs_page_leads_to_its_report(watched: Watched, reported: str) -> None:
    watched.page.goto(f"/jobs/{reported}")
    watched.page.get_by_role("link", name="Report", exact=True).click()
    expect(watched.page.locator("#epochs-table")).to_be_visible()
    expect_charts(watched)


def test_maps_of_a_part_of_a_history_cover_its_epochs(browser: Browser, tmp_path: Path) -> None:
    numbers = (100, 150, 199)
    source = make_source(3, epochs=[make_epoch(number) for number in numbers], num_epochs=200)
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(build_report(source).pieces))
    page = browser.new_page()
    page.goto(file.as_uri())
    expect(page.locator("#regimes .main-svg").first).to_be_visible()
    shown = page.evaluate("document.getElementById('regimes').layout.xaxis.range")
    assert shown == [99.5, 199.5]
    page.close()


def test_groups_of_runs_have_a_line_and_an_area_each(browser: Browser, tmp_path: Path) -> None:
    groups = collect_groups(["a", "digits"], [SEEDS, [JOB]])
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(build_page(describe_groups(groups, written_at=BEGIN)).pieces))
    watched = Watched(browser.new_page(), file.as_uri())
    watched.page.goto(file.as_uri())
    for chart in ("loss", "metric", "wire", "lr", "local_steps"):
        expect(watched.page.locator(f"#{chart} .main-svg").first).to_be_visible()
    expect(watched.page.locator("#metric .fills path")).to_have_count(1)
    expect(watched.page.locator("#metric .lines path.js-line")).to_have_count(4)
    expect(watched.page.locator("#metric-said")).to_contain_text("Newest of a: 50.0 %.")
    expect(watched.page.locator("#differences-table")).to_contain_text("training.epochs")
    assert watched.faults == []
    watched.page.close()


def test_a_change_of_an_unknown_cause_leaves_the_charts(browser: Browser, tmp_path: Path) -> None:
    old = {"old": 1, "new": 2, "cause": "unknown", "message": "by another version"}
    events = [
        make_event("workers", what="resizing", **old),
        make_event("workers", what="started", cause="toString", epoch=1, step=30, world_size=2),
    ]
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(build_report(make_source(3, events=events)).pieces))
    page = browser.new_page()
    faults: list[object] = []
    page.on("pageerror", lambda error: faults.append(error))
    page.goto(file.as_uri())
    expect(page.locator("#levels .main-svg").first).to_be_visible()
    assert faults == []
    page.close()


@pytest.mark.parametrize("chart", ["metrics", "change", "regimes", "levels"])
def test_names_of_metrics_and_layers_are_no_markup_in_charts(
    browser: Browser, tmp_path: Path, chart: str
) -> None:
    name = '<a href="https://other.host">&lt;b></a>'
    of_layer = {"regime_by_layer": {name: "stable"}, "level_by_layer": {name: "high"}}
    metrics = {name: 0.5, f"{name}2": 9.0}
    epochs = [make_epoch(number, metrics=metrics, **of_layer) for number in range(2)]
    decisions = [make_decision(0, change_by_layer={name: 0.1})]
    schedule = make_schedule([name])
    source = make_source(2, epochs=epochs, decisions=decisions, schedule=schedule)
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(build_report(source).pieces))
    page = browser.new_page()
    page.goto(file.as_uri())
    expect(page.locator(f"#{chart} .main-svg").first).to_be_visible()
    assert name in "".join(page.locator(f"#{chart} text").all_text_contents())
    assert page.locator(f"#{chart} a").count() == 0
    page.close()
