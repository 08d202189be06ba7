"""Pages of jobs that are not as usual, of much at once, and of a service that goes and
comes back.
"""

from __future__ import annotations

import copy
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import open_epochs_table

NUM_LAYERS = 60
NUM_EPOCHS = 300


def test_a_job_that_waits_says_so_and_shows_no_empty_charts(page, service):
    job_id = service.submit("waits", workers={"min": 4, "max": 4, "cpus": 4})
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#status")).to_have_text("Queued")
    expect(page.locator("#message")).to_contain_text("needs 4 workers")
    expect(page.locator("#wait")).to_contain_text("needs 4 workers")
    expect(page.locator("#wait")).to_contain_text("in the queue")
    expect(page.locator("#no-epochs")).to_be_visible()
    expect(page.locator("#pictures")).to_be_hidden()
    page.get_by_role("button", name="Cancel job").click()
    page.locator("#sure-yes").click()
    expect(page.locator("#status")).to_have_text("Cancelled")
    expect(page.locator("#wait")).to_be_hidden()
    expect(page.locator("#live")).to_have_text("Finished")
    expect(page.locator("#no-epochs")).to_have_text(
        "No epoch was finished, so there are no charts."
    )


def test_a_job_with_a_total_time_limit_says_when_it_fails(page, service):
    waits = {"workers": {"min": 4, "max": 4, "cpus": 4}}
    job_id = service.submit("limited", limits={"total_seconds": 86400}, **waits)
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#time-out")).to_contain_text("if it has not ended by then")
    service.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    expect(page.locator("#status")).to_have_text("Cancelled")
    expect(page.locator("#time-out")).to_be_hidden()


def test_a_job_that_failed_before_its_first_epoch_says_why(page, service):
    job_id = service.submit("fails", task={"name": "synthetic", "options": {"raise_at_step": 0}})
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#status")).to_have_text("Failed")
    expect(page.locator("#message")).to_contain_text("RuntimeError: raised on purpose")
    expect(page.locator("#changes")).to_contain_text("rank 0 failed at step")
    expect(page.locator("#no-epochs")).to_have_text(
        "No epoch was finished, so there are no charts."
    )


def test_guest_run_has_no_steering_but_overrides_and_no_invented_plan(page, service):
    job_id = service.runtime.enlist("mine", spec={"training": {"epochs": 3}})
    service.wait_for_registration(job_id)
    page.goto(f"/jobs/{job_id}")
    expect(page.get_by_text("Guest run", exact=True)).to_be_visible()
    expect(page.locator("#epoch-text")).to_have_text("3 epochs done")
    expect(page.locator("#ray")).to_have_text(
        "Workers run by Ray Train · run mine-run · Ray job 01000000"
    )
    expect(page.locator("#override")).to_be_attached()
    for hidden in ("#pause", "#resume", "#cancel", "#resize"):
        expect(page.locator(hidden)).to_be_hidden()
    page.goto("/")
    row = page.locator("#rows tr", has_text="mine")
    expect(row).to_contain_text("guest run")
    expect(row).to_contain_text("3 epochs done")


def test_a_page_tells_that_the_service_is_gone_and_goes_on_when_it_is_back(
    watched, service, steered
):
    page = watched.page
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#live")).to_have_text("Live")
    service.api.stop()
    try:
        expect(page.locator("#live")).to_have_text("Connection lost, retrying")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator("#message")).to_contain_text("The service does not respond")
    finally:
        service.api.start()
    expect(page.locator("#live")).to_have_text("Live")
    epochs = service.num_epochs(steered)
    expect(page.locator("#events")).to_contain_text(f"epoch {epochs + 1}: loss")


def test_a_page_comes_again_after_something_in_front_refused_its_stream(watched, steered):
    page = watched.page
    page.route("**/events?**", lambda route: route.fulfill(status=502, body="bad gateway"), times=1)
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#events tr")).not_to_have_count(0)


def test_a_page_asks_again_for_what_failed_when_it_was_opened(watched, steered):
    page = watched.page
    page.route("**/epochs?**", lambda route: route.abort(), times=1)
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#loss .main-svg").first).to_be_visible()
    expect(page.locator("#live")).to_have_text("Live")


def answers(page, path, status):
    """Awaits an answer to the page of that status, from an address that ends so."""
    return page.expect_response(
        lambda answer: answer.url.partition("?")[0].endswith(path) and answer.status == status
    )


def test_a_page_is_live_again_when_what_was_refused_once_came(watched, service, steered):
    page = watched.page
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#live")).to_have_text("Live")
    page.route("**/schedule", lambda route: route.fulfill(status=503), times=1)
    with answers(page, "/schedule", 200), answers(page, "/schedule", 503):
        service.wait_for_epochs(steered, service.num_epochs(steered) + 1)
    expect(page.locator("#live")).to_have_text("Live")


def test_a_page_of_an_ended_job_says_finished_when_what_was_refused_once_came(
    watched, service, steered
):
    page = watched.page
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#live")).to_have_text("Live")
    page.route("**/decisions?**", lambda route: route.fulfill(status=503), times=1)
    with answers(page, "/decisions", 200), answers(page, "/decisions", 503):
        service.client.post(f"/api/v1/jobs/{steered}/cancel").raise_for_status()
    expect(page.locator("#live")).to_have_text("Finished")


def test_a_log_stream_that_was_refused_once_comes_again(watched, steered):
    page = watched.page
    page.route("**/logs?**", lambda route: route.fulfill(status=502), times=1)
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#logs")).to_contain_text("training from epoch 0")
    expect(page.locator("#live")).to_have_text("Live")


def test_a_page_that_is_shown_again_loads_only_the_newest_output(watched, steered):
    page, urls = watched.page, []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#logs")).to_contain_text("training from epoch 0")
    with page.expect_request("**/logs?**"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    asked = [parse_qs(urlsplit(url).query) for url in urls if "/logs?" in url]
    assert asked == [{"follow": ["true"], "tail": ["400"]}] * 2
    assert page.locator("#logs").inner_text().count("rank 0      training from epoch 0") == 1


def test_a_log_stream_that_broke_and_was_then_refused_goes_on_where_it_was(watched, service):
    job_id = service.submit("logged", epochs=6)
    service.wait_for_end(job_id)
    page, path = watched.page, f"/api/v1/jobs/{job_id}/logs"
    frames = service.client.get(path, params={"follow": "true"}).text.split("\n\n")
    begin = "\n\n".join([*frames[: len(frames) // 2], ""])
    page.route("**/logs?**", lambda route: route.fulfill(status=502), times=1)
    page.route(
        "**/logs?**",
        lambda route: route.fulfill(content_type="text/event-stream", body=begin),
        times=1,
    )
    page.goto(f"/jobs/{job_id}")
    last = "epoch 5 ended"
    expect(page.locator("#logs")).to_contain_text(last)
    assert page.locator("#logs").inner_text().count("\n") + 1 == service.client.get(
        path
    ).text.count("\n")


def test_a_form_that_is_sent_before_the_page_knows_its_job_is_heard(page, steered):
    held = []
    page.route(f"**/api/v1/jobs/{steered}", lambda route: held.append(route), times=1)
    page.goto(f"/jobs/{steered}")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator("#override-said")).to_contain_text("Accepted")
    held[0].continue_()
    expect(page.locator("#overrides")).to_contain_text("Applied")


@pytest.mark.parametrize(
    ("form", "button", "reload"), [("override", "Override", "overrides"), ("resize", "Resize", "")]
)
def test_what_was_accepted_is_said_so_though_the_page_cannot_be_told_what_came_of_it(
    watched, steered, form, button, reload
):
    page, path = watched.page, f"/api/v1/jobs/{steered}"
    page.goto(f"/jobs/{steered}")
    expect(page.locator("#live")).to_have_text("Live")
    address = f"{path}/{reload}" if reload else path
    page.route(
        f"**{address}",
        lambda route: route.abort() if route.request.method == "GET" else route.continue_(),
    )
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#live")).to_have_text("Connection lost, retrying")
    expect(page.locator(f"#{form}-said")).to_contain_text("Accepted")


def widened(by_layer):
    return {
        f"block{n}.weight": value
        for n in range(NUM_LAYERS)
        for value in list(by_layer.values())[:1]
    }


def many(items):
    """Rows of many epochs with many layers, made from the newest row."""
    rows = [
        copy.deepcopy(items[-1]) | {"epoch": n, "step": 23 * (n + 1)} for n in range(NUM_EPOCHS)
    ]
    for row in rows:
        for key in ("regime_by_layer", "level_by_layer", "statistic_by_layer"):
            row[key] = widened(row[key])
    return rows


def test_many_epochs_of_many_layers_fit_the_page(page, service):
    job_id = service.submit("large", epochs=2)
    service.wait_for_end(job_id)
    epochs = many(service.client.get(f"/api/v1/jobs/{job_id}/epochs").json()["items"])
    schedule = service.client.get(f"/api/v1/jobs/{job_id}/schedule").json()
    schedule["layers"] = [
        schedule["layers"][0] | {"layer": f"block{n}.weight"} for n in range(NUM_LAYERS)
    ]
    page.route(f"**/{job_id}/epochs?**", lambda route: route.fulfill(json={"items": epochs}))
    page.route(f"**/{job_id}/schedule", lambda route: route.fulfill(json=schedule))
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#live")).to_have_text("Finished")
    expect(page.locator("#epoch-text")).to_contain_text(f"{NUM_EPOCHS} of")
    cells = page.locator("#regimes .heatmaplayer image")
    expect(cells).to_have_count(1)
    assert page.locator("#regimes").bounding_box()["height"] <= 700
    expect(
        page.locator("#regimes .yaxislayer-above text", has_text="block0.weight")
    ).to_be_visible()


def test_what_a_task_measures_goes_by_its_own_name(page, service):
    task = {"name": "lm-lstm", "options": {"data": "/anywhere"}}
    job_id = service.submit("language", epochs=2, task=task)
    service.wait_for_epochs(job_id, 2)
    page.goto("/")
    expect(page.locator("#rows tr", has_text="language")).to_contain_text("perplexity 62.46")
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#tiles")).to_contain_text("Perplexity62.46")
    expect(page.locator("#metrics .legendtext")).to_have_text("perplexity")
    expect(page.locator("#metrics-said")).to_contain_text("Newest perplexity 62.4")
    expect(page.locator("#events")).to_contain_text("perplexity 74.52")
    open_epochs_table(page)
    expect(page.locator('#epochs tr[data-epoch="1"]')).to_contain_text("perplexity 62.46")
    expect(page.locator("body")).not_to_contain_text("ccuracy")


def test_metrics_of_other_sizes_have_an_axis_of_their_own_and_accuracy_comes_first(page, service):
    job_id = service.submit("measured", epochs=3)
    service.wait_for_end(job_id)
    epochs = service.client.get(f"/api/v1/jobs/{job_id}/epochs").json()["items"]
    for row in epochs:
        row["metrics"] = {"loss": 0.5, "perplexity": 62.5, "accuracy": 0.9, "recall": 0.8}
    page.route(f"**/{job_id}/epochs?**", lambda route: route.fulfill(json={"items": epochs}))
    page.route(
        "**/events?**", lambda route: route.fulfill(content_type="text/event-stream", body="")
    )
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#metrics .legendtext")).to_have_text(
        ["accuracy", "perplexity (right)", "recall"]
    )
    axes = page.evaluate(
        "document.getElementById('metrics').data.map((trace) => trace.yaxis ?? 'y')"
    )
    assert axes == ["y", "y2", "y"]
    expect(page.locator("#metrics .y2tick")).not_to_have_count(0)
    expect(page.locator("#tiles")).to_contain_text("Accuracy90.0 %")
    open_epochs_table(page)
    expect(page.locator("#epochs tr").first).to_contain_text("accuracy 90.0 %, perplexity 62.5")


def test_lines_join_the_epochs_that_were_evaluated(page, service):
    job_id = service.submit("seldom", epochs=3)
    service.wait_for_end(job_id)
    epochs = service.client.get(f"/api/v1/jobs/{job_id}/epochs").json()["items"]
    for row, metrics in zip(epochs, ({"loss": 0.5, "accuracy": 0.75}, {}, {}), strict=True):
        row["metrics"] = metrics
    epochs[2]["metrics"] = {"loss": 0.25, "accuracy": 0.875}
    epochs.append({**epochs[2], "epoch": 3, "metrics": {}})
    page.route(f"**/{job_id}/epochs?**", lambda route: route.fulfill(json={"items": epochs}))
    page.route(
        "**/events?**", lambda route: route.fulfill(content_type="text/event-stream", body="")
    )
    page.goto(f"/jobs/{job_id}")
    expect(page.locator("#tiles")).to_contain_text("Accuracy87.5 %")
    # Charts are drawn less often than tiles.
    expect(page.locator("#loss .main-svg").first).to_be_visible()
    drawn = page.evaluate(
        "['loss', 'metrics'].map((id) => document.getElementById(id).data.at(-1))"
        ".map(({ x, y }) => ({ x, y }))"
    )
    assert drawn == [{"x": [0, 2], "y": [0.5, 0.25]}, {"x": [0, 2], "y": [0.75, 0.875]}]


@pytest.fixture
def long(page, service):
    """A job of three epochs, whose newest page has two."""
    job_id = service.submit("long", epochs=3)
    service.wait_for_end(job_id)
    path = f"/api/v1/jobs/{job_id}/epochs?order=newest&limit=2"
    newest = service.client.get(path).json()
    older = service.client.get(f"{path}&cursor={newest['next_cursor']}").json()
    page.route(
        "**/epochs?**",
        lambda route: route.fulfill(json=older if "cursor" in route.request.url else newest),
    )
    return job_id


def test_a_page_opens_with_the_newest_epochs_and_loads_older_ones_when_asked(page, long):
    page.goto(f"/jobs/{long}")
    expect(page.locator("#epoch-text")).to_contain_text("3 of")
    open_epochs_table(page)
    expect(page.locator("#epochs tr")).to_have_count(2)
    page.get_by_role("button", name="Older epochs and decisions").click()
    expect(page.locator("#epochs tr")).to_have_count(3)
    expect(page.locator("#older")).to_be_hidden()


def test_charts_show_the_whole_history_also_of_epochs_that_are_not_loaded(page, long):
    page.goto(f"/jobs/{long}")
    expect(page.locator("#loss .trace").first.locator(".point")).to_have_count(3)
    for chart in ("loss", "traffic", "regimes", "levels"):
        x = page.evaluate("(id) => document.getElementById(id).data[0].x", chart)
        assert x == [0, 1, 2]
    texts = page.evaluate("document.getElementById('levels').data[0].text")
    assert all(re.search(r"epoch 0<br>critical, level low", row[0]) for row in texts)


def test_past_epochs_are_not_loaded_again_by_their_events(page, long):
    with page.expect_event("requestfinished", lambda request: "/events" in request.url):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"/jobs/{long}")
    expect(page.locator("#events")).to_contain_text("epoch 0: loss")
    assert len([url for url in asked if "/epochs?" in url]) == 1


@pytest.mark.parametrize(
    ("script", "name"),
    [("override", "Override"), ("workers", "Resize")],
    ids=["override", "resize"],
)
def test_a_form_waits_for_its_script(page, running, script, name):
    """A click before would reload the page and lose what was typed."""
    held = []
    page.route(f"**/{script}.js", lambda route: held.append(route))
    page.goto(f"/jobs/{running}", wait_until="commit")
    button = page.locator("form").get_by_role("button", name=name, exact=True)
    expect(button).to_be_disabled()
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    expect(button).to_be_enabled()
