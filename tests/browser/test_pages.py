"""The pages in a real browser, over a live service with a scripted cluster."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import LONG, open_epochs_table


def open_epochs(page, job_id):
    page.goto(f"/jobs/{job_id}")
    open_epochs_table(page)


def test_rows_of_epochs_come_while_the_job_runs(page, service, running):
    open_epochs(page, running)
    rows = page.locator("#epochs tr")
    expect(rows).not_to_have_count(0)
    seen = service.num_epochs(running)
    expect(page.locator(f'#epochs tr[data-epoch="{seen + 2}"]')).to_be_visible()


def test_the_charts_are_drawn(page, service, running):
    service.wait_for_epochs(running, 3)
    page.goto(f"/jobs/{running}")
    for chart in ("loss", "metrics", "traffic", "phases", "change", "rate", "regimes", "levels"):
        expect(page.locator(f"#{chart} .main-svg").first).to_be_visible()
    expect(page.locator("#loss-said")).to_contain_text("Newest training loss 0.")
    expect(page.locator("#attempts tr")).to_contain_text("1training")
    expect(page.locator("#checkpoints tr")).to_have_count(2)
    expect(page.get_by_role("link", name="Model of the best")).to_be_hidden()
    expect(page.locator("#storage")).to_contain_text("shared: verified by 2 workers on 2 hosts at")
    link = page.get_by_role("link", name="Download the model", exact=True)
    expect(link).to_have_attribute("href", f"/api/v1/jobs/{running}/model")


def test_texts_of_charts_for_screen_readers_have_rounded_numbers(page, service, running):
    service.wait_for_epochs(running, 3)
    page.goto(f"/jobs/{running}")
    expect(page.locator("#levels-said")).to_contain_text("Levels of the newest epoch")
    told = "\n".join(page.locator("figcaption").all_inner_texts())
    assert re.search(r"each worker sent [\d.]+ .?B, uncompressed [\d.]+ .?B", told)
    assert re.findall(r"[1-9]\d*\.?\d{6,}", told) == []


def test_the_page_says_what_holds_the_job_up(page, service):
    job_id = service.submit("slow-network", epochs=LONG, compression={"method": "none"})
    service.wait_for_epochs(job_id, 2)
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#why-sentence")).to_contain_text("The network holds this job up")
    expect(page.locator("#why-change")).to_contain_text("times as many samples per second")
    expect(page.locator("#parts tr", has_text="communicate")).to_contain_text("%")
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    service.wait_for_end(job_id)


def test_the_override_form_adds_and_cancels_an_override(page, running):
    page.goto(f"/jobs/{running}")
    page.get_by_label("Level", exact=True).select_option("options")
    page.get_by_label("Options", exact=True).fill("rank=2")
    page.get_by_label("Layers", exact=True).fill("fc1*")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#overrides")).to_contain_text("Applied")
    expect(page.locator("#overrides")).to_contain_text("2 of 2")
    expect(page.locator("#schedule tr", has_text="fc1.weight")).to_contain_text("override 1")
    page.get_by_role("button", name="Cancel override 1").click()
    expect(page.locator("#overrides")).to_contain_text("Cancelled")


def test_the_form_shows_the_call_it_makes(page, running):
    page.goto(f"/jobs/{running}")
    page.get_by_label("Until epoch", exact=True).fill("30")
    expected = (
        f"POST /api/v1/jobs/{running}/overrides\n"
        '{"level":"low","layers":["*"],"apply_at":"next_step","until":30}'
    )
    expect(page.locator("#call")).to_have_text(expected)


def test_a_refused_override_says_why(watched, running):
    page = watched.page
    page.goto(f"/jobs/{running}")
    page.get_by_label("Layers", exact=True).fill("nothing*")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#override-said")).to_contain_text("no layer matches 'nothing*'")


def test_the_resize_form_gives_the_job_other_workers(page, steered):
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#ranks tr")).to_have_count(2)
    page.get_by_label("At most", exact=True).fill("3")
    expect(page.locator("#resize-call")).to_have_text(
        f'POST /api/v1/jobs/{steered}/resize\n{{"min":1,"max":3}}'
    )
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.locator("#events")).to_contain_text(
        "2 → 3 workers: allocation changed, 0 steps rolled back, 0.8 s lost"
    )
    expect(page.locator("#workers-note")).to_have_text("3 training, 3 allocated, 1 to 3 allowed")
    expect(page.locator("#ranks tr")).to_have_count(3)
    expect(page.locator("#tally")).to_contain_text("1 resize, 0 recoveries; 0 steps rolled back")


def test_the_resize_form_follows_what_others_order(page, service, steered):
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#ranks tr")).to_have_count(2)
    service.client.post(
        f"/api/v1/jobs/{steered}/resize", json={"min": 1, "max": 4}
    ).raise_for_status()
    expect(page.locator("#workers-note")).to_contain_text("1 to 4 allowed")
    expect(page.get_by_label("At most", exact=True)).to_have_value("4")
    expect(page.locator("#resize-call")).to_contain_text('{"min":1,"max":4}')


def test_a_refused_resize_says_why(watched, running):
    page = watched.page
    page.goto(f"/jobs/{running}")
    page.get_by_label("At most", exact=True).fill("9")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.locator("#resize-said")).to_contain_text(
        "4 shares for workers.max 9; lower micro_batch"
    )


def test_a_job_is_paused_and_resumed(page, steered):
    page.goto(f"/jobs/{steered}")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#status")).to_have_text("Paused")
    expect(page.locator("#pace")).to_have_text(re.compile(r"^step \d+ of \d+$"))
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#events")).to_contain_text("paused by admin: paused; its state is saved")


def test_a_job_is_cancelled_only_after_being_asked_again(page, service):
    job_id = service.submit("to-cancel", epochs=LONG)
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Keep running").click()
    assert service.job(job_id)["desired"] == "RUN"
    page.get_by_role("button", name="Cancel job").click()
    page.locator("#sure-yes").click()
    expect(page.locator("#status")).to_have_text("Cancelled")


def test_an_ended_job_says_so_and_shows_its_checkpoints(page, service):
    job_id = service.submit("short", epochs=4, objective={"metric": "loss", "mode": "max"})
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#status")).to_have_text("Succeeded")
    expect(page.locator("#live")).to_have_text("Finished")
    expect(page.get_by_role("button", name="Override", exact=True)).to_be_hidden()
    expect(page.locator("#attempts tr")).to_contain_text("1ended")
    rows = page.locator("#checkpoints tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("epoch-00004 Newest")
    expect(rows.last).to_contain_text("epoch-00001 Best")
    best = page.get_by_role("link", name="Model of the best")
    expect(best).to_have_attribute("href", f"/api/v1/jobs/{job_id}/model?checkpoint=best")
    named = page.get_by_role("link", name="Download the model of epoch-00003")
    expect(named).to_have_attribute("href", re.compile(r"\?checkpoint=epoch-00003$"))


def test_the_stream_goes_on_where_it_was_after_the_page_was_hidden(page, service, running):
    page.goto(f"/jobs/{running}")
    expect(page.locator("#events tr").first).to_be_visible()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    open_count = service.num_epochs(running)
    # The table holds the newest rows only: on a busy machine the very next epoch may be gone when
    # the browser looks.
    newer = "|".join(map(str, range(open_count + 1, LONG)))
    expect(page.locator("#events")).to_contain_text(re.compile(f"epoch ({newer}): loss"))
    told = page.locator("#events td:last-child").all_inner_texts()
    epochs = [text for text in told if re.match(r"epoch \d+:", text)]
    assert len(epochs) == len(set(epochs))


def test_the_list_of_jobs_is_live(page, service):
    page.goto("/")
    job_id = service.submit("appears-later", epochs=2)
    row = page.locator("#rows tr", has=page.locator(f'a[href="/jobs/{job_id}"]'))
    expect(row).to_contain_text("Succeeded")
    expect(row).to_contain_text("2 of 2 epochs done")
    expect(row).to_contain_text("%")


def test_the_list_is_filtered_and_goes_on_to_older_jobs_from_its_address(watched, service):
    page, rows = watched.page, watched.page.locator("#rows tr")
    ids = [service.submit(f"paged-{n}", epochs=1, labels={"sweep": "pages"}) for n in range(3)]
    page.route(
        "**/api/v1/jobs?**",
        lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=1")),
    )
    page.goto("/")
    for field, value in (("Start of the name", "paged"), ("Labels", "sweep:pages")):
        page.get_by_label(field).fill(value)
        page.get_by_label(field).press("Enter")
    expect(rows.locator("a")).to_have_attribute("href", f"/jobs/{ids[2]}")
    for job_id in (ids[1], ids[0]):
        page.get_by_role("button", name="Older jobs").click()
        expect(page.locator("#list-title")).to_be_focused()
        expect(rows.locator("a")).to_have_attribute("href", f"/jobs/{job_id}")
    expect(page.get_by_role("button", name="Older jobs")).to_be_hidden()
    page.reload()
    expect(rows.locator("a")).to_have_attribute("href", f"/jobs/{ids[0]}")
    expect(page.get_by_label("Labels")).to_have_value("sweep:pages")
    page.get_by_role("button", name="Newer jobs").click()
    expect(rows.locator("a")).to_have_attribute("href", f"/jobs/{ids[1]}")
    page.go_back()
    expect(rows.locator("a")).to_have_attribute("href", f"/jobs/{ids[0]}")
    page.get_by_label("Labels").fill("sweep")
    page.get_by_label("Labels").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("give it as key:value")
    expect(rows).to_have_count(0)


def test_a_filter_that_is_not_applied_yet_goes_before_the_page_of_older_jobs(page, service):
    ids = [service.submit(f"turned-{n}", epochs=1) for n in range(2)]
    for job_id in ids:
        service.wait_for_end(job_id)
    reads = []
    page.on("request", lambda request: reads.append(request.url.partition("/api/v1/")[2]))
    page.route(
        "**/api/v1/jobs?**",
        lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=1")),
    )
    page.goto("/?name_prefix=turned&status=SUCCEEDED&status=FAILED")
    link = page.locator("#rows a")
    expect(link).to_have_attribute("href", f"/jobs/{ids[1]}")
    expect(page.get_by_label("State", exact=True)).to_have_value("SUCCEEDED, FAILED")
    page.get_by_label("Start of the name").fill("turned-0")
    page.get_by_role("button", name="Older jobs").click()
    expect(link).to_have_attribute("href", f"/jobs/{ids[0]}")
    expect(page).to_have_url(re.compile(r"name_prefix=turned-0&status=SUCCEEDED&status=FAILED$"))
    assert [path for path in reads if "cursor" in path or path == "cluster"] == []


def test_jobs_are_counted_that_the_page_does_not_list(page, service):
    for job_id in [service.submit(f"counted-{n}", epochs=1) for n in range(2)]:
        service.wait_for_end(job_id)
    page.route(
        "**/api/v1/jobs?**",
        lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=1")),
    )
    num_ended = service.client.get("/api/v1/job-counts").json()["jobs"]["SUCCEEDED"]
    page.goto("/")
    expect(page.locator("#tiles")).to_contain_text(f"Succeeded{num_ended}")
    expect(page.locator("#rows tr")).to_have_count(1)
    assert num_ended >= 2


def test_filters_of_the_address_that_have_no_field_are_kept(page, service):
    service.wait_for_end(service.submit("without-topk", epochs=1))
    page.goto("/?method=topk&name_prefix=without")
    expect(page.locator("#none")).to_be_visible()
    expect(page.locator("#hidden")).to_contain_text("Also filtered by method topk.")
    page.get_by_label("State", exact=True).select_option("SUCCEEDED")
    expect(page).to_have_url(re.compile(r"name_prefix=without&status=SUCCEEDED&method=topk$"))
    page.get_by_role("link", name="Show all").click()
    expect(page).to_have_url(re.compile(r"/$"))
    expect(page.locator("#hidden")).to_be_hidden()


def test_a_row_keeps_the_focus_while_the_list_is_read_again(page, running):
    page.goto("/")
    link = page.locator(f'#rows a[href="/jobs/{running}"]')
    link.focus()
    for _ in range(3):
        page.wait_for_event("requestfinished", lambda request: "/api/v1/jobs?" in request.url)
    expect(link).to_be_focused()


def test_pages_say_what_a_job_waits_for_and_what_would_help(page, service):
    quota = {"label": "team:one"}
    service.client.put("/api/v1/quotas", json={**quota, "jobs": 1}).raise_for_status()
    first, second = (
        service.submit(name, epochs=LONG, labels={"team": "one"}) for name in ("holds", "waits-for")
    )
    service.wait_for_queue(second, first)
    for path, place in (("/cluster", "#queue tr"), (f"/jobs/{second}", "#wait")):
        page.goto(path)
        shown = page.locator(place, has_text="higher quota of label team:one")
        link = shown.get_by_role("link", name="holds", exact=True)
        expect(link).to_have_attribute("href", f"/jobs/{first}")
    service.client.delete("/api/v1/quotas", params=quota).raise_for_status()
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#wait")).to_be_hidden()
    for job_id in (first, second):
        service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
        service.wait_for_end(job_id)


def test_the_cluster_page_says_why_a_job_waits(page, service):
    job_id = service.submit("too-large", workers={"min": 4, "max": 4, "cpus": 4})
    service.wait_for_queue(job_id, "needs 4 workers")
    page.goto("/cluster")
    expect(page.locator("#queue tr", has_text="too-large")).to_contain_text("needs 4 workers")
    expect(page.get_by_role("heading", name="Quotas")).to_be_hidden()
    expect(page.locator("#nodes tr")).to_have_count(2)
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()


def test_the_cluster_page_says_what_nodes_were_requested(page, service, monkeypatch):
    monkeypatch.setattr(service.runtime, "has_autoscaler", True)
    job_id = service.submit("asks-for-nodes", workers={"min": 4, "max": 4, "cpus": 4})
    service.wait_for_queue(job_id, "were requested")
    page.goto("/cluster")
    row = page.locator("#queue tr", has_text="asks-for-nodes")
    expect(row).to_contain_text("nodes for 4 workers of 4 CPU each were requested")
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()


def test_the_cluster_page_says_why_a_node_takes_no_workers(page, service):
    node = "/api/v1/nodes/10.0.0.2"
    reads = []
    page.on("request", lambda request: reads.append(request.url.partition("/api/v1/")[2]))
    # The page's clock stands still until the test moves it on.
    page.add_init_script("performance.now = () => window.clockMs ?? 0")
    page.goto("/cluster")
    expect(page.locator("#nodes tr")).to_have_count(2)
    service.client.post(f"{node}/cordon", json={"reason": "new GPUs"}).raise_for_status()
    row = page.locator("#nodes tr", has_text="10.0.0.2")
    expect(row).to_contain_text("Cordoned")
    way_out = "an operator can restore it with 'accordion node restore 10.0.0.2'"
    expect(row).to_contain_text(f"new GPUs; {way_out}")
    service.client.post(f"{node}/restore").raise_for_status()
    expect(row).to_contain_text("Alive")
    while reads.count("cluster") < 3:
        page.wait_for_event("request")
    # The service explains every waiting job for each request of the queue.
    assert reads.count("queue") == 1
    with page.expect_request("**/api/v1/queue"):
        page.evaluate("window.clockMs = 10000")


@pytest.mark.parametrize("path", ["/", "/audit", "/cluster", "/jobs/{job}"])
def test_a_phone_need_not_scroll_sideways(page, running, path):
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(path.format(job=running))
    expect(page.locator("#tiles div, #rows tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", ["/", "/audit", "/cluster", "/jobs/{job}", "/login"])
def test_every_field_and_button_has_a_name(page, running, path):
    page.goto(path.format(job=running))
    unnamed = """() => [...document.querySelectorAll(
            'input:not([hidden]):not([type=hidden]), select, button')]
        .filter((field) => !field.labels?.length && !field.ariaLabel && !field.textContent.trim())
        .map((field) => field.outerHTML)"""
    assert page.evaluate(unnamed) == []


def test_an_unknown_job_is_a_page_that_says_so(watched):
    answer = watched.page.goto("/jobs/nobody")
    assert answer.status == 404
    expect(watched.page.locator("main")).to_contain_text("There is no job nobody")


def test_pages_forbid_scripts_from_elsewhere(page):
    policy = page.goto("/").headers["content-security-policy"]
    assert "script-src 'self';" in policy


def test_an_ended_job_is_archived_and_taken_back(page, service):
    job_id = service.submit("put-away", epochs=2)
    row = page.locator("#rows tr", has=page.locator(f'a[href="/jobs/{job_id}"]'))
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#status")).to_have_text("Succeeded")
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_text("Archived", exact=True)).to_be_visible()
    page.goto("/")
    expect(page.locator("#tiles")).to_contain_text("Running")
    expect(row).to_have_count(0)
    page.get_by_label("Archived jobs").select_option("true")
    expect(row).to_contain_text("archived")
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#events")).to_contain_text("archived by admin")
    page.get_by_role("button", name="Unarchive").click()
    expect(page.get_by_text("Archived", exact=True)).to_be_hidden()


def test_events_that_are_no_longer_kept_are_told_in_a_line(page, running):
    gap = {"type": "gap", "from_seq": 3, "to_seq": 8, "why": "only the newest are kept"}
    # It does not connect again while the test looks.
    body = f"retry: 600000\n\nid: 8\nevent: gap\ndata: {json.dumps(gap)}\n\n"
    page.route(
        "**/events?**", lambda route: route.fulfill(content_type="text/event-stream", body=body)
    )
    page.goto(f"/jobs/{running}")
    told = "events 3 to 8 are missing: only the newest are kept"
    expect(page.locator("#events")).to_contain_text(told)


def test_a_job_shows_its_packages_when_they_are_resolved(page, service):
    job_id = service.submit("packages", pip=["einops==0.8.0"])
    page.goto(f"/jobs/{job_id}")
    shown = "einops 0.8.0 (43.2 kB, resolved in 2 s)"
    expect(page.locator("#packages")).to_have_text(f"Packages: {shown}")
    row = page.locator("#events tr", has_text="packages")
    expect(row).to_contain_text(shown)
    service.wait_for_end(job_id)


def test_the_page_tells_how_many_local_steps_workers_take(page, service):
    ladder = {"low": 4, "high": 16}
    job_id = service.submit("rounds", compression={"method": "half"}, local_steps=ladder)
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#schedule-rounds")).to_have_text(
        "Local steps: each worker takes 4 steps between two exchanges."
    )
    expect(page.locator("#rate-said")).to_contain_text("Newest number of local steps 4.")
    expect(page.locator("#rate .legend")).to_contain_text("local steps (right)")


def test_the_form_of_a_job_with_a_budget_has_no_limit_that_only_its_workers_know(page, service):
    budget = {"compression": {"method": "half"}, "local_steps": {"budget": 4}}
    page.goto(f"/jobs/{service.submit('budget', **budget)}")
    page.locator("#target").select_option("local_steps")
    expect(page.locator("#rounds-hint")).to_have_text(
        "optimizer steps between two exchanges; low follows from a budget of 4"
    )
    page.locator("#rounds").select_option("steps")
    expect(page.locator("#steps-hint")).to_contain_text("to the job's high, which its log tells")
    expect(page.locator("#steps")).to_have_js_property("max", "")


def test_a_page_of_a_job_without_local_steps_does_not_mention_them(page, running):
    page.goto(f"/jobs/{running}")
    expect(page.locator("#schedule tr")).not_to_have_count(0)
    expect(page.locator("#schedule-rounds")).to_be_hidden()
    expect(page.locator("#rate-said")).to_contain_text("Newest learning rate")
    expect(page.locator("#rate-said")).not_to_contain_text("local steps")
