"""Learning rates that the bench of learning tries, its table and its picture, without training."""

from __future__ import annotations

import pytest

from accordion_workers.records.contract import JobSpec
from tests.bench import paper
from tests.bench.accuracy import build_spec
from tests.bench.learning import ALL, write_table
from tests.bench.learning_figure import choose_group, draw

ROW = {
    "recipe": "images",
    "contestant": "none, every step",
    "rate": 0.05,
    "tried": {"0.05": 0.45},
    "values": [0.44, 0.45, 0.46],
    "wire": 142e6,
    "payload": 95e6,
    "dense_wire": 142e6,
    "commit": "abc",
}


@pytest.mark.parametrize(
    ("recipe", "means", "expected"),
    [
        ("images", {}, (0.025, 0.05, 0.1, 0.2)),
        ("images", {0.025: 0.4, 0.05: 0.5, 0.1: 0.4, 0.2: 0.3}, ()),
        ("images", {0.025: 0.5, 0.05: 0.4, 0.1: 0.4, 0.2: 0.3}, (0.0125,)),
        ("images", {0.025: 0.1, 0.05: 0.4, 0.1: 0.4, 0.2: 0.5}, (0.4,)),
        ("LSTM", {0.01: 1.9, 0.02: 2.0, 0.03: 2.1, 0.04: 2.2}, (0.005,)),
    ],
)
def test_a_best_rate_at_the_end_of_the_tried_ones_asks_for_one_beyond(recipe, means, expected):
    assert tuple(ALL[recipe].choose_rates(means)) == expected


@pytest.mark.parametrize(
    ("recipe", "contestant"),
    [
        (recipe, contestant)
        for recipe in (*ALL.values(), *paper.ALL.values(), *paper.CARD.values())
        for contestant in recipe.contestants
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_contestant_is_a_job_that_the_service_would_accept(recipe, contestant, monkeypatch):
    monkeypatch.setenv("ACCORDION_DATA", "/data")
    JobSpec.model_validate(build_spec(recipe, recipe.contestants[contestant], rate=0.1, seed=0))


def test_every_published_number_stands_beside_a_contestant():
    for recipe in (*paper.ALL.values(), *paper.CARD.values()):
        assert recipe.published.keys() <= recipe.contestants.keys()
        contestant = next(iter(recipe.published))
        row = {**ROW, "recipe": "one", "contestant": contestant}
        assert f"| {recipe.published[contestant]} |" in write_table([row], {"one": recipe})


def test_the_picture_names_and_the_table_shows_every_row(tmp_path):
    rows = [ROW, {**ROW, "contestant": "32 local steps, 4 bits", "wire": 1.3e6}]
    draw(rows, tmp_path / "first.svg")
    draw(rows, tmp_path / "second.svg")
    picture = (tmp_path / "first.svg").read_text()
    assert picture == (tmp_path / "second.svg").read_text()
    for row in rows:
        assert f": {row['contestant']}" in picture
        assert f"| {row['contestant']} | 45.0 ±2.5 % |" in write_table(rows)


@pytest.mark.parametrize(
    ("contestant", "expected"),
    [
        ("none, every step", "uncompressed"),
        ("QSGD 4 bits, every step", "every step"),
        ("by_rate, rank 3 and 1", "every step"),
        ("4 local steps, 32 after the drop, 4 bits", "local steps"),
        ("automatic start, 15 local steps and more, 4 bits", "local steps"),
    ],
)
def test_contestants_are_grouped_by_how_they_exchange(contestant, expected):
    assert choose_group(ALL["images"], contestant) == expected
