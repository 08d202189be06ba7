"""The report of several groups of runs: what it shows, and what it never contains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion_client.commands.compared_history import ComparedHistory, keep_compared
from accordion_client.commands.comparison import IncomparableError
from accordion_client.commands.group_report import MAX_EPOCHS, collect_groups, describe_groups
from accordion_client.commands.simulated_jobs import SimulatedJob
from accordion_service.api.dashboard.report_frame import PageParts, build_page
from accordion_workers.simulation.simulated_runs import SimulatedStatus
from tests.unit.service.report_samples import BEGIN, SPEC, make_epoch, make_job

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(1)>'"&<!--"""


def make_run(place: str, losses: list[float], **changes: Any) -> ComparedHistory:
    """A simulated run with one epoch for each loss, which its accuracy equals."""
    seed = int(place[-1])
    run: dict[str, Any] = {
        "id": f"/runs/{place}",
        "name": place,
        "status": SimulatedStatus.SUCCEEDED,
        "message": "",
        "spec": SPEC | {"training": {"epochs": len(losses), "seed": seed}},
        "labels": {},
        "workers": 2,
    }
    metrics = [{"accuracy": value} for value in losses]
    epochs = [
        make_epoch(n, loss=value, metrics=metrics[n], local_steps=n + 1)
        for n, value in enumerate(losses)
    ]
    return ComparedHistory(
        job=SimulatedJob(**{**run, **changes}), epochs=[keep_compared(row) for row in epochs]
    )


def describe(**histories: list[ComparedHistory]) -> PageParts:
    groups = collect_groups(list(histories), list(histories.values()))
    return describe_groups(groups, written_at=BEGIN)


def rows_of(parts: PageParts, table_id: str) -> list[tuple[str, ...]]:
    return [row for table in parts.tables if table.id == table_id for row in table.rows]


SEEDS = [make_run(f"a/seed-{n}", [0.5, value]) for n, value in enumerate([0.25, 0.5, 0.75])]
JOB = ComparedHistory(job=make_job(2), epochs=[keep_compared(make_epoch(n)) for n in range(2)])


def test_charts_have_means_over_seeds_and_their_intervals() -> None:
    parts = describe(a=SEEDS)
    [group] = parts.data["groups"]
    last = group["epochs"][-1]
    assert (group["name"], parts.data["metric_name"]) == ("a", "accuracy")
    assert (last["loss"], last["metric"]) == (0.5, 0.5)
    assert last["metric_half"] == pytest.approx(4.303 * 0.25 / 3**0.5)
    assert "95 % interval" in parts.about
    charts = ["loss", "metric", "wire", "lr", "local_steps"]
    assert [chart.id for chart in parts.charts] == charts


def test_a_job_of_the_service_is_a_group_of_one_run_without_an_interval() -> None:
    parts = describe(a=SEEDS, digits=[JOB])
    job = parts.data["groups"][1]
    assert (parts.title, job["epochs"][0]["loss_half"]) == ("a, digits", None)
    assert [row[:3] for row in rows_of(parts, "seeds")] == [
        ("a", "0", "SUCCEEDED"),
        ("a", "1", "SUCCEEDED"),
        ("a", "2", "SUCCEEDED"),
        ("a", "mean", ""),
        ("digits", "0", "SUCCEEDED"),
    ]
    assert "not of a cluster; bytes are" in parts.measured
    assert describe(digits=[JOB]).measured.startswith("Bytes are")


def test_specs_are_compared_without_seeds() -> None:
    other = make_run("b/seed-9", [0.5], spec=SPEC | {"training": {"epochs": 1, "seed": 9}})
    parts = describe(a=SEEDS, b=[other])
    assert rows_of(parts, "differences") == [("training.epochs", "2", "1")]
    assert rows_of(describe(a=SEEDS), "differences") == []


def test_groups_of_one_name_are_shown_as_they_were_given() -> None:
    there = [make_run(f"b/seed-{n}", [0.5]) for n in range(2)]
    histories = {"old/a": SEEDS, "new/a": there}
    assert describe(**histories).title == "old/a, new/a"


def test_a_seed_that_failed_tells_why_and_counts_in_no_mean() -> None:
    failed = make_run("a/seed-7", [90.0], status=SimulatedStatus.FAILED, message="it raised")
    parts = describe(a=[*SEEDS, failed])
    assert (parts.message, parts.is_failed) == ("a/seed-7: it raised", True)
    [mean] = [row for row in rows_of(parts, "seeds") if row[1] == "mean"]
    assert mean[5].startswith("0.5 ±")


def test_long_histories_are_thinned() -> None:
    parts = describe(a=[make_run("a/seed-0", [0.5] * 1000)])
    assert len(parts.data["groups"][0]["epochs"]) == MAX_EPOCHS
    assert len(rows_of(parts, "epochs")) == MAX_EPOCHS
    assert "a/seed-0: 200 of 1000 epochs are shown" in parts.notes[0]


@pytest.mark.parametrize(
    ("histories", "sentence"),
    [
        ({"a": SEEDS, "b": SEEDS[:1]}, r"job /runs/a/seed-0 \(a/seed-0\) is given 2 times"),
        ({"a": SEEDS, "b": [make_run("b/seed-0", [])]}, "b has finished no epoch; leave it out"),
    ],
)
def test_runs_that_cannot_be_shown_are_named(
    histories: dict[str, list[ComparedHistory]], sentence: str
) -> None:
    with pytest.raises(IncomparableError, match=sentence):
        describe(**histories)


def test_texts_of_runs_are_no_markup_and_secrets_are_left_out() -> None:
    spec = SPEC | {"env": {"TOKEN": "s3cret-value"}, "task": {"name": HOSTILE, "options": {}}}
    said = f"KeyError: 's3cret-value' {HOSTILE}"
    failed = {"spec": spec, "status": SimulatedStatus.FAILED, "message": said}
    run = make_run("b/seed-1", [0.5], name=HOSTILE, **failed)
    html = b"".join(build_page(describe(a=SEEDS, b=[run])).pieces).decode()
    data = html.split('id="report-data">')[1].split("</script>")[0]
    assert json.loads(data)["groups"][1]["name"] == HOSTILE
    assert "s3cret" not in html
    assert "KeyError" in html
    assert "<img" not in html.split("<script>")[0]
