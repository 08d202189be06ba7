"""Jobs side by side: figures, and what differs in the specs."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from accordion_client.commands.compare import tabulate_figures, tabulate_specs
from accordion_client.commands.compared_history import ComparedHistory, keep_compared
from accordion_client.commands.comparison import (
    Comparison,
    IncomparableError,
    compare_jobs,
    find_differences,
)
from tests.unit.service.report_samples import (
    BEGIN,
    EPOCH_S,
    SPEC,
    STEPS,
    make_epoch,
    make_job,
)

SECOND = "00000000-0000-7000-8000-000000000002"
NOW = BEGIN + timedelta(seconds=30)


def make_history(epochs: int, **changes: Any) -> ComparedHistory:
    rows = changes.pop("rows", [make_epoch(number) for number in range(epochs)])
    return ComparedHistory(
        job=make_job(epochs, **changes), epochs=[keep_compared(row) for row in rows]
    )


def compare(
    *histories: ComparedHistory, metric: str | None = None, reaches: float | None = None
) -> Comparison:
    return compare_jobs(histories, metric=metric, reaches=reaches, now=NOW)


def changed_spec(**training: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["training"] |= training
    return spec


def cells(table: Any) -> dict[str, list[str]]:
    columns = [list(column.cells) for column in table.columns]
    return {label: [column[n] for column in columns[1:]] for n, label in enumerate(columns[0])}


def test_the_figures_follow_from_the_history() -> None:
    compared = compare(make_history(4), make_history(2, id=SECOND, name="other"), reaches=0.75)
    first, second = compared.jobs
    assert compared.metric == "accuracy"
    assert (first.final, first.best, first.best_epoch) == (0.875, 0.875, 3)
    assert (first.reached_epoch, first.reached_s) == (1, 2 * EPOCH_S)
    assert first.step_s == pytest.approx(EPOCH_S / STEPS)
    assert first.step_s_by_phase["communicate"] == pytest.approx(0.25 * EPOCH_S / STEPS)
    assert (first.sent_bytes, first.ratio, second.sent_bytes) == (8000, 4.0, 4000)
    assert (first.duration_s, second.epochs) == (90.0, 2)


def test_an_accuracy_in_percent_is_no_goal_of_jobs_that_report_fractions() -> None:
    pair = make_history(4), make_history(2, id=SECOND, name="other")
    with pytest.raises(IncomparableError, match=r"--reaches is 75, .* give 0\.75 for 75 %"):
        compare(*pair, reaches=75)


def test_bytes_sent_are_divided_by_method() -> None:
    parts = {"payload_by_method": {"qsgd": 1}, "wire_by_method": {"qsgd": 2000}}
    rows = [make_epoch(n, bytes={"wire": 2000, **parts}) for n in range(2)]
    other = make_history(2, id=SECOND, name="other", rows=rows, progress=None)
    shown = cells(tabulate_figures(compare(make_history(2), other)))
    assert shown["  qsgd"] == ["-", "4 kB"]


def test_a_job_that_goes_on_is_compared_until_now() -> None:
    running = make_history(2, id=SECOND, status="RUNNING", ended_at=None)
    assert compare(make_history(2), running).jobs[1].duration_s == 30.0


def test_the_workers_are_those_of_all_epochs() -> None:
    rows = [make_epoch(n, world_size=size) for n, size in enumerate([1, 4, 2])]
    other = make_history(3, id=SECOND, name="other", rows=rows)
    shown = cells(tabulate_figures(compare(make_history(2), other)))
    assert shown["workers"] == ["2", "1 to 4"]


def test_specs_are_compared_place_by_place() -> None:
    second = changed_spec(optimizer={"name": "adam", "lr": 0.1}) | {
        "name": "other",
        "batch": {"low": 64},
    }
    assert find_differences([SPEC, second]) == {
        "training.optimizer.name": ["sgd", "adam"],
        "batch.low": [None, 64],
    }


def test_priority_and_labels_are_compared_as_they_are_now() -> None:
    first = make_history(1, priority=20, labels={"team": "vision"})
    compared = compare(first, make_history(1, id=SECOND, priority=50, labels={}))
    assert compared.spec == {"priority": [20, 50], "labels.team": ["vision", None]}


def test_an_empty_mapping_is_like_a_missing_one() -> None:
    assert find_differences([{"labels": {}}, {}]) == {}
    assert find_differences([{"a": {}}, {"a": {"b": 1}}]) == {"a.b": [None, 1]}
    assert find_differences([{"a": 1}, {"a": 1.0}, {"a": True}]) == {"a": [1, 1.0, True]}


def test_jobs_of_one_name_are_told_apart_by_their_ids() -> None:
    table = tabulate_figures(compare(make_history(1), make_history(1, id=SECOND)))
    headers = [str(column.header) for column in table.columns]
    assert headers[1:] == [f"digits ({make_job(1).id})", f"digits ({SECOND})"]
    assert len(set(headers)) == 3
    other = make_history(1, id="12345678-9000-7000-8000-000000000001")
    table = tabulate_figures(compare(make_history(1), other))
    assert [str(column.header) for column in table.columns[1:]] == [
        "digits (00000000)",
        "digits (12345678)",
    ]


def test_values_are_shown_as_in_a_job_file() -> None:
    spec = changed_spec(precision=None, optimizer={"name": "sgd", "lr": 0.2}, milestones=[1, 2])
    compared = compare(make_history(1), make_history(1, id=SECOND, spec=spec))
    assert cells(tabulate_specs(compared)) == {
        "training.optimizer.lr": ["0.1", "0.2"],
        "training.milestones": ["-", "[1, 2]"],
    }


def test_the_metric_of_the_option_is_compared_where_a_job_has_it() -> None:
    rows = [
        make_epoch(0, metrics={"perplexity": 60.0}),
        make_epoch(1, metrics={"perplexity": 50.0}),
    ]
    other = make_history(2, id=SECOND, name="other", rows=rows)
    compared = compare(make_history(2), other, metric="perplexity", reaches=55)
    assert [job.best for job in compared.jobs] == [None, 50.0]
    assert [job.reached_epoch for job in compared.jobs] == [None, 1]
    shown = cells(tabulate_figures(compared))
    assert shown["perplexity reaches 55"] == ["not reached", "in epoch 1, after 4 s of training"]


def test_ten_thousand_epochs_are_compared() -> None:
    long = make_history(10_000)
    assert compare(long, make_history(1, id=SECOND)).jobs[0].steps == 10_000 * STEPS


def test_guest_runs_and_jobs_without_metrics_are_compared() -> None:
    rows = [make_epoch(0, metrics={}, loss=None)]
    guest = make_history(1, id=SECOND, kind="guest", spec={}, rows=rows)
    other = make_history(1, rows=rows)
    compared = compare(guest, other)
    assert compared.metric is None
    assert compared.jobs[0].loss is None
    json.dumps(asdict(compared), allow_nan=False)


def with_objective(mode: str) -> dict[str, Any]:
    return SPEC | {"objective": {"metric": "score", "mode": mode}}


def scored(mode: str | None, **changes: Any) -> ComparedHistory:
    rows = [make_epoch(n, metrics={"score": value}) for n, value in enumerate([3.0, 1.0, 2.0])]
    return make_history(3, rows=rows, spec=with_objective(mode) if mode else SPEC, **changes)


@pytest.mark.parametrize(
    ("modes", "smaller"),
    [((None, None), False), (("min", None), True), ((None, "min"), True), (("max", None), False)],
)
def test_all_jobs_are_judged_in_one_direction(
    modes: tuple[str | None, str | None], smaller: bool
) -> None:
    compared = compare(scored(modes[0]), scored(modes[1], id=SECOND), metric="score", reaches=2.0)
    assert compared.smaller_is_better is smaller
    assert [job.best for job in compared.jobs] == [1.0 if smaller else 3.0] * 2
    assert [job.reached_epoch for job in compared.jobs] == [1 if smaller else 0] * 2
    direction = "smallest" if smaller else "largest"
    assert f"best score ({direction})" in cells(tabulate_figures(compared))


def test_a_step_is_timed_only_where_its_number_of_steps_is_known() -> None:
    late = [make_epoch(n) for n in (100, 101, 105, 106)]
    guest = make_history(4, rows=late, kind="guest")
    alone = make_history(1, id=SECOND, kind="guest", rows=late[:1])
    first, second = compare(guest, alone, reaches=0.5).jobs
    assert first.step_s == pytest.approx(EPOCH_S / STEPS)
    assert (second.step_s, second.step_s_by_phase) == (None, {})
    assert (first.reached_epoch, first.reached_s) == (100, None)
    shown = cells(tabulate_figures(compare(guest, alone, reaches=0.5)))
    assert shown["time per step"] == ["87 ms", "-"]
    assert shown["accuracy reaches 0.5"][0] == "in epoch 100"


def test_characters_that_control_a_terminal_are_shown_as_json() -> None:
    rows = [make_epoch(0, metrics={"acc\x1b[2J": 1.0})]
    first = make_history(1, name="a\x1b]0;b\x07", rows=rows)
    other = make_history(1, id=SECOND, rows=rows, spec=SPEC | {"x\x9b": "\x9b1m", "y": ["\u202e"]})
    compared = compare(first, other)
    tables = [tabulate_figures(compared), tabulate_specs(compared)]
    texts = [text for table in tables for shown in cells(table).items() for text in shown]
    headers = [str(column.header) for table in tables for column in table.columns]
    flat = [text for one in texts for text in (one if isinstance(one, list) else [one])]
    assert all(text.isprintable() for text in flat + headers)
    assert '"\\u009b1m"' in flat


@pytest.mark.parametrize(
    ("histories", "options", "why"),
    [
        ([make_history(1), make_history(1)], {}, "is given 2 times; give different jobs"),
        (
            [make_history(1), make_history(0, id=SECOND, status="QUEUED", ended_at=None)],
            {},
            f"job {SECOND} .digits. is QUEUED and has finished no epoch; wait for its first epoch",
        ),
        (
            [make_history(1), make_history(0, id=SECOND, status="FAILED")],
            {},
            "is FAILED and has finished no epoch; leave it out",
        ),
        (
            [make_history(1), make_history(0, id=SECOND, status="FAILED", ended_at=None)],
            {},
            "is FAILED and has finished no epoch; leave it out",
        ),
        (
            [make_history(1), make_history(1, id=SECOND)],
            {"metric": "recall"},
            "metric is 'recall', and the epochs of these jobs have accuracy, loss; give one",
        ),
        (
            [
                make_history(1, rows=[make_epoch(0, metrics={})]),
                make_history(1, id=SECOND, rows=[make_epoch(0, metrics={})]),
            ],
            {"reaches": 0.9},
            "no epoch was evaluated",
        ),
        (
            [scored("min"), scored("max", id=SECOND)],
            {"metric": "score"},
            "say that a smaller and a larger 'score' is better; give another metric",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    histories: list[ComparedHistory], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(IncomparableError, match=why):
        compare(*histories, **options)
