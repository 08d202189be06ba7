"""What changed who trains a job and who decides: marks in its charts, with their words, and a table
of them.
"""

from __future__ import annotations

from datetime import datetime

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import LONG, open_epochs_table
from tests.browser.live_service import wait_until

CHARTS = ("loss", "metrics", "traffic", "phases", "change", "rate", "regimes", "levels")
SHADED = (
    "document.getElementById('loss').layout?.shapes.filter((one) => one.type === 'rect').map((one)"
    " => one.x1)"
)


def resize(service, job_id, least, most):
    service.client.post(
        f"/api/v1/jobs/{job_id}/resize", json={"min": least, "max": most}
    ).raise_for_status()


def signs(page, chart, text):
    return page.locator(f"#{chart} .annotation", has_text=text)


def changes(page, kind):
    return page.locator(f"#changes tr[data-kind={kind}]")


def test_a_resize_is_marked_in_every_chart_while_people_look(page, service, steered):
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#changes")).to_have_text("None so far.")
    resize(service, steered, 1, 3)
    for chart in CHARTS:
        expect(signs(page, chart, "2→3")).to_have_count(1)
    expect(changes(page, "resize")).to_contain_text("Resized: 2 → 3 workers")
    expect(changes(page, "resize")).to_contain_text("allocation changed")
    expect(page.locator("#loss-said")).to_contain_text("Marked: 1 resize;")
    expect(page.locator("#marks")).to_contain_text("resize")


def test_a_mark_lies_where_its_epoch_was_interrupted(page, service, steered):
    page.goto(f"/jobs/{steered}")
    resize(service, steered, 1, 3)
    expect(signs(page, "loss", "2→3")).to_have_count(1)
    epoch, step = (
        int(part) for part in changes(page, "resize").locator("td").nth(2).inner_text().split(",")
    )
    service.wait_for_epochs(steered, epoch + 1)
    rows = service.client.get(f"/api/v1/jobs/{steered}/epochs").json()["items"]
    begin, end = rows[epoch - 1]["step"], rows[epoch]["step"]
    expected = epoch - 0.5 + (step - begin) / (end - begin)
    page.reload()
    expect(signs(page, "loss", "2→3")).to_have_count(1)
    place = page.evaluate("document.getElementById('loss').layout.annotations[0].x")
    assert place == pytest.approx(expected)


def test_a_mark_tells_its_words_when_it_is_pointed_at(page, service, steered):
    service.runtime.break_group(steered)
    page.goto(f"/jobs/{steered}")
    expect(changes(page, "recovery")).to_contain_text("Recovered with 2 workers")
    page.locator("#loss .annotation-text-g", has_text="✕").hover()
    words = page.locator("#loss .hoverlayer")
    expect(words).to_contain_text("Recovered with 2 workers")
    expect(words).to_contain_text("rank 1 lost at step")
    expect(words).to_contain_text("rolled back, 0.8 s lost")


def test_a_recovery_is_told_the_same_after_a_reload(page, service, steered):
    page.goto(f"/jobs/{steered}")
    service.runtime.break_group(steered)
    expect(changes(page, "recovery")).to_contain_text("0.8 s")
    told = changes(page, "recovery").inner_text()
    assert "a worker process ended" in told
    page.reload()
    expect(changes(page, "recovery")).to_have_count(1)
    expect(changes(page, "recovery")).to_have_text(told.replace("\t", ""), use_inner_text=False)
    expect(signs(page, "levels", "✕")).to_have_count(1)


def test_a_group_that_is_lost_is_told_before_another_one_trains(page, service, steered):
    page.goto(f"/jobs/{steered}")
    service.runtime.slow_start = 2
    service.runtime.stuck.add(steered)
    service.runtime.break_group(steered)
    expect(changes(page, "recovery")).to_contain_text("Workers lost")
    expect(changes(page, "recovery")).to_contain_text("rank 1 lost at step")
    service.runtime.stuck.discard(steered)
    expect(changes(page, "recovery")).to_contain_text("Recovered with 2 workers")


@pytest.mark.parametrize("orders", [("cancel",), ("pause", "cancel")])
def test_an_announced_resize_is_closed_when_it_does_not_come_to_pass(page, service, orders):
    job_id = service.submit("too-late", epochs=LONG)
    service.wait_for_epochs(job_id, 1)
    resize(service, job_id, 1, 3)
    service.wait_for_workers(job_id, 3)
    for order in orders:
        service.client.post(f"/api/v1/jobs/{job_id}/{order}").raise_for_status()
        service.wait_for_workers(job_id, 0)
    service.wait_for_end(job_id)
    frames = service.client.get(f"/api/v1/jobs/{job_id}/events").text.split("\n\n")
    told = "\n\n".join(frame for frame in frames if '"cause":"resize"' not in frame)
    page.route(
        "**/events?**", lambda route: route.fulfill(content_type="text/event-stream", body=told)
    )
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#live")).to_have_text("Finished")
    expect(changes(page, "resize")).to_contain_text("Resize 2 → 3 did not take place")
    expect(changes(page, "resize")).to_contain_text("allocation changed")
    expect(changes(page, "restart")).to_have_count(len(orders) - 1)


def test_workers_that_nobody_replaced_are_told_as_the_end_of_the_job(page, service):
    job_id = service.submit("breaks", task={"name": "synthetic", "options": {"raise_at_step": 30}})
    page.goto(f"/jobs/{job_id}")
    expect(changes(page, "recovery")).to_contain_text("Workers lost and not replaced")


def test_a_resumed_job_is_marked_where_it_goes_on(page, service, steered):
    page.goto(f"/jobs/{steered}")
    page.get_by_role("button", name="Pause", exact=True).click()
    ended = changes(page, "restart").filter(has_text="Attempt 1 ended")
    expect(ended).to_contain_text("paused by admin")
    page.get_by_role("button", name="Resume", exact=True).click()
    follows = changes(page, "restart").filter(has_text="Attempt 2 continues with 2 workers")
    expect(follows).to_contain_text("resumed by admin")
    expect(follows).not_to_contain_text("paused")
    expect(ended).not_to_contain_text("resume")
    expect(changes(page, "restart")).to_have_count(2)
    expect(signs(page, "loss", "↻")).to_have_count(1)


def test_each_attempt_ends_and_begins_at_its_own_time(page, service, steered):
    for order, size in (("pause", 0), ("resume", 2)):
        service.client.post(f"/api/v1/jobs/{steered}/{order}").raise_for_status()
        service.wait_for_workers(steered, size)
    first, second = service.client.get(f"/api/v1/jobs/{steered}/attempts").json()["items"]
    page.goto(f"/jobs/{steered}")
    times = [
        datetime.fromisoformat(one).astimezone()
        for one in (second["started_at"], first["ended_at"])
    ]
    for row, time in zip((0, 1), times, strict=True):
        expect(changes(page, "restart").nth(row)).to_contain_text(f"{time:%H:%M:%S}")


def test_shade_of_an_override_ends_where_it_is_cancelled(page, service, steered):
    page.goto(f"/jobs/{steered}")
    body = {
        "level": "low",
        "layers": ["fc1*"],
        "apply_at": "next_step",
        "reason": "to see <b>it</b>",
    }
    service.client.post(f"/api/v1/jobs/{steered}/overrides", json=body).raise_for_status()
    expect(changes(page, "override")).to_contain_text("Override 1: low for fc1*")
    expect(changes(page, "override")).to_contain_text("to see <b>it</b>; then by admin")
    expect(page.locator("#decisions")).to_contain_text("override 1 by admin holds 1 of 3 layers")
    expect(signs(page, "loss", "✎")).to_have_count(1)
    page.get_by_role("button", name="Cancel override 1").click()
    expect(page.locator("#overrides")).to_contain_text("Cancelled")
    service.wait_for_epochs(steered, service.num_epochs(steered) + 2)
    page.reload()
    expect(signs(page, "loss", "✎")).to_have_count(1)
    # overrides may come before the decisions, which tell how far the shade reaches.
    # Not wait_for_function, which evaluates texts in the page: its security policy refuses that.
    wait_until(lambda: len(page.evaluate(SHADED) or []) == 1, "the shade ends")
    [end] = page.evaluate(SHADED)
    assert end < service.num_epochs(steered) - 1


def test_marks_that_would_cover_each_other_are_counted_by_one(page, service, steered):
    page.set_viewport_size({"width": 390, "height": 844})
    # A chart is 326 pixels wide and a sign 31: of 14 signs, two cover each other wherever they are.
    for most in (3, 4) * 7:
        resize(service, steered, 1, most)
        service.wait_for_workers(steered, most)
    page.goto(f"/jobs/{steered}")
    expect(changes(page, "resize")).to_have_count(14)
    expect(page.locator("#loss .annotation", has_text="×")).not_to_have_count(0)


def test_epochs_that_are_trained_again_leave_the_page(page, service, steered):
    page.goto(f"/jobs/{steered}")
    open_epochs_table(page)
    saved = service.runtime.jobs[steered].saved
    service.wait_for_epochs(steered, saved.epoch + 8)
    expect(page.locator(f'#epochs tr[data-epoch="{saved.epoch + 7}"]')).to_be_visible()
    service.runtime.stuck.add(steered)
    service.runtime.jobs[steered].saved = saved
    service.runtime.break_group(steered)
    service.client.post(f"/api/v1/jobs/{steered}/cancel").raise_for_status()
    service.runtime.stuck.discard(steered)
    service.wait_for_end(steered)
    left = service.num_epochs(steered)
    assert left < saved.epoch + 8
    for _ in ("live", "after a reload"):
        expect(page.locator("#live")).to_have_text("Finished")
        expect(page.locator("#epochs tr")).to_have_count(left)
        page.reload()
        open_epochs_table(page)
