"""Which part of a long history is shown, which value of a metric is better, and names of files."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.file_names import name_file
from accordion_service.domain.jobs.shareable_spec import hide_in_urls, hide_secrets
from accordion_service.domain.performance.metric_goals import (
    MetricValue,
    choose_main_metric,
    find_best,
    find_reached,
    get_objective_mode,
    is_smaller_better,
    list_values,
)
from accordion_service.domain.performance.thinning import (
    choose_epochs,
    choose_in_force,
    thin_evenly,
)

VALUES = [MetricValue(epoch=n, value=value) for n, value in enumerate([0.5, 0.9, 0.7, 0.9])]


@given(st.integers(0, 10_000), st.integers(2, 300))
def test_a_thinned_history_is_even_and_keeps_both_ends(count: int, limit: int) -> None:
    items = range(count)
    chosen = thin_evenly(items, limit)
    assert len(chosen) == min(count, limit)
    assert chosen[:1] + chosen[-1:] == [*items[:1], *items[-1:]]
    gaps = [after - before for before, after in pairwise(chosen)]
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


@given(st.integers(0, 3000), st.sets(st.integers(0, 3000), max_size=50), st.integers(4, 300))
def test_a_thinned_history_keeps_both_ends_and_epochs_with_decisions(
    count: int, changed: set[int], limit: int
) -> None:
    chosen = choose_epochs(range(count), sorted(changed), limit)
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
    assert [*chosen[:1], *chosen[-1:]] == [*range(count)[:1], *range(count)[-1:]]
    if len(changed) <= limit // 2:
        assert changed.intersection(range(count)) <= set(chosen)


def test_the_decision_in_force_is_the_newest_before_the_end_of_an_epoch() -> None:
    starts = [(0, 0), (1, 10), (1, 15), (4, 40)]
    assert choose_in_force(starts, [(0, 9), (1, 19), (2, 29), (5, 59)]) == [
        (0, 0),
        (1, 15),
        (4, 40),
    ]
    assert choose_in_force(starts[1:], [(0, 9)]) == []


def test_the_best_value_is_the_first_of_equal_ones() -> None:
    assert find_best(VALUES, smaller=False) == VALUES[1]
    assert find_best(VALUES, smaller=True) == VALUES[0]
    assert find_best([], smaller=True) is None


def test_a_goal_is_reached_by_the_first_value_that_is_as_good() -> None:
    assert find_reached(VALUES, 0.7, smaller=False) == VALUES[1]
    assert find_reached(VALUES, 0.5, smaller=True) == VALUES[0]
    assert find_reached(VALUES, 0.95, smaller=False) is None


def test_values_that_are_not_finite_do_not_count() -> None:
    history = [(0, {"accuracy": math.nan}), (1, {}), (2, {"accuracy": 0.5})]
    assert list_values("accuracy", history) == [MetricValue(epoch=2, value=0.5)]


@pytest.mark.parametrize(
    ("metric", "smaller"),
    [
        *(("loss", True), ("eval_loss_mean", True), ("valLoss", True), ("loss_scale", False)),
        *(("perplexity", True), ("val_error_rate", True), ("val/nll", True), ("test.WER", True)),
        *(("accuracy", False), ("glossary", False), ("map", False), ("", False)),
    ],
)
def test_the_words_of_a_metric_tell_which_value_is_better(metric: str, smaller: bool) -> None:
    assert is_smaller_better(metric, None) == smaller
    mode = "max" if smaller else "min"
    objective = {"objective": {"metric": metric, "mode": mode}}
    assert is_smaller_better(metric, get_objective_mode(metric, objective)) != smaller
    assert get_objective_mode("another", objective) is None


def test_the_main_metric_is_the_objective_then_the_accuracy_then_the_loss() -> None:
    names = ["epoch", "loss", "recall", "accuracy"]
    assert choose_main_metric(names, {"objective": {"metric": "recall"}}) == "recall"
    assert choose_main_metric(names, {}) == "accuracy"
    assert choose_main_metric(names[:2], {}) == "loss"
    assert choose_main_metric(["recall"], {}) == "recall"
    assert choose_main_metric([], {"objective": {"metric": "recall"}}) is None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("digits", "digits.html"),
        ("../a/b", "a-b.html"),
        ("--force", "force.html"),
        (".hidden", "hidden.html"),
        ("..", "job.html"),
    ],
)
def test_the_file_of_a_job_is_in_its_folder_and_not_hidden(name: str, file: str) -> None:
    assert name_file(name, ".html") == file


def test_logins_and_queries_of_urls_are_hidden() -> None:
    text = "get https://user:pw@host/path?key=1#part or a@b?c"
    assert hide_in_urls(text) == "get https://***@host/path?*** or a@b?c"


def test_a_long_text_of_urls_is_hidden_in_linear_time() -> None:
    spec = hide_secrets({"x": "://" * 350_000, "y": "http://a:b@c/" + "d" * 5000})
    assert spec["x"].endswith("… (1050000 characters)")
    assert (spec["y"][:15], len(spec["y"]) < 2100) == ("http://***@c/dd", True)
