"""Jobs, table and picture of the bench of accuracy on real links, without training."""

from __future__ import annotations

import pytest

from accordion_workers.records.contract import JobSpec
from tests.bench.accuracy import CONTESTS, build_spec
from tests.bench.accuracy_figure import choose_group, draw
from tests.bench.accuracy_table import find_target, write_table
from tests.bench.learning import ALL, EVERY_STEP


def run(contestant, *metrics, seconds=1.0, seed=0, link="100", failed=""):
    return {
        "task": "images",
        "contestant": contestant,
        "link": link,
        "rate": 0.05,
        "seed": seed,
        "epochs": [
            {"seconds": seconds * number, "sent": 1e6 * number, "metric": metric}
            for number, metric in enumerate(metrics, start=1)
        ],
        "sent": 1e6 * len(metrics),
        "failed": failed,
        "commit": "abc",
        "load": 0.0,
    }


CONTEST = {"images": {"target": 0.4, "smaller": False, "metric": "accuracy"}}


@pytest.mark.parametrize("task", CONTESTS)
def test_every_contestant_trains_a_job_that_the_service_would_accept(task, monkeypatch):
    monkeypatch.setenv("ACCORDION_DATA", "/data")
    for changes in (*CONTESTS[task].ours.values(), EVERY_STEP):
        job = JobSpec.model_validate(build_spec(ALL[task], changes, rate=0.07, seed=5))
        assert (job.training.optimizer.lr, job.training.seed) == (0.07, 5)
        assert job.training.clip_norm is None, "the peers' loop does not clip"


def test_time_to_a_target_is_that_of_the_first_epoch_end_that_has_it():
    learned = run("DDP", 0.3, 0.41, 0.39, seconds=2.0)
    reached = find_target(learned, target=0.4, smaller=False)
    assert (reached.seconds, reached.sent) == (4.0, 2e6)
    assert find_target(learned, target=0.5, smaller=False) is None
    assert find_target(learned, target=0.3, smaller=True).seconds == 2.0
    assert find_target(run("DDP", None, 0.4), target=0.4, smaller=False).seconds == 2.0


def test_a_row_is_compared_with_plain_ddp_of_the_same_seed():
    runs = [
        run("DDP", 0.3, 0.41, seconds=10.0),
        run("DDP", 0.3, 0.41, seconds=20.0, seed=1),
        run("fast", 0.3, 0.41),
        run("fast", 0.41, 0.41, seed=1),
    ]
    table = write_table(runs, CONTEST)
    # Seed 0: 20 s against 2 s; seed 1: 40 s against 1 s.
    assert "| fast | 0.410 ±0.000 | 1.5 s | 25.0× | 1.50 MB | 1.5× |" in table


def test_a_row_whose_seeds_do_not_all_reach_the_target_says_how_many_do():
    runs = [run("DDP", 0.41), run("slow", 0.41), run("slow", 0.39, seed=1)]
    assert "| slow | 0.400 ±0.127 | in 1 of 2 |" in write_table(runs, CONTEST)


def test_runs_that_failed_and_those_that_chose_rates_are_told():
    runs = [run("DDP", 0.41), run("broken", failed="not finite"), run("DDP", 0.41, link="0")]
    table = write_table(runs, CONTEST)
    assert "| broken | failed: not finite |" in table
    assert table.count("| DDP |") == 1
    assert "1 more runs chose learning rates" in table


def test_the_picture_names_every_contestant_and_is_the_same_for_the_same_runs(tmp_path):
    names = ("DDP", "AdaComp", "4 local steps, 32 after the drop, 2 bits")
    runs = [run(name, 0.3, 0.41, seconds=number) for number, name in enumerate(names, start=1)]
    for file in ("first.svg", "second.svg"):
        draw(runs, tmp_path / file)
    picture = (tmp_path / "first.svg").read_text()
    assert picture == (tmp_path / "second.svg").read_text()
    assert all(f": {name}" in picture for name in names)
    groups = [choose_group("images", name) for name in names]
    assert groups == ["peers", "ours, every step", "ours, local steps"]
