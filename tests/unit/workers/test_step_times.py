"""Mean seconds of a step over the newest steps."""

from __future__ import annotations

import pytest

from accordion_workers.training.step_times import MARK_EVERY_S, WINDOW_S, StepTimes


class Steps:
    """Steps of a run whose phases take what a test says."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self.now_s, self.step = 100.0, 7
        self.seconds = {"compute": 50.0, "evaluate": 5.0}

    def take(self, number: int, compute_s: float) -> None:
        for _ in range(number):
            self.now_s += compute_s
            self.step += 1
            self.seconds["compute"] += compute_s
            self.times.observe_step(self.now_s, self.step, self.seconds)

    def evaluate(self, seconds: float) -> None:
        self.now_s += seconds
        self.seconds["evaluate"] += seconds
        self.times.start_epoch(self.now_s, self.step, self.seconds)


def test_nothing_is_known_before_two_steps_were_marked():
    steps = Steps()
    assert steps.times.means() == {}
    steps.take(1, 1.0)
    assert steps.times.means() == {}
    steps.take(1, 1.0)
    assert steps.times.means() == {"compute": 1.0, "evaluate": 0.0}


def test_steps_faster_than_the_marks_count_all_the_same():
    steps = Steps()
    steps.take(1000, MARK_EVERY_S / 100)
    assert steps.times.means()["compute"] == pytest.approx(MARK_EVERY_S / 100)


def test_the_means_are_new_only_where_a_moment_was_kept():
    times = StepTimes()
    kept = [times.observe_step(0.1 * step, step, {"compute": 0.1 * step}) for step in range(7)]
    assert kept == [True, False, False, True, False, False, True]


def test_a_change_is_forgotten_after_the_window():
    steps = Steps()
    steps.take(20, 1.0)
    steps.take(int(WINDOW_S / 0.5) + 1, 0.5)
    assert steps.times.means()["compute"] == pytest.approx(0.5)


def test_a_step_longer_than_the_window_is_measured():
    steps = Steps()
    steps.take(3, 3 * WINDOW_S)
    assert steps.times.means()["compute"] == pytest.approx(3 * WINDOW_S)


def test_phases_between_epochs_are_spread_over_the_last_whole_epoch_and_the_open_one():
    steps = Steps()
    steps.take(10, 1.0)
    steps.evaluate(60.0)
    steps.take(50, 1.0)
    assert steps.times.means()["evaluate"] == pytest.approx(60.0 / 59)
    steps.evaluate(30.0)
    steps.take(10, 1.0)
    assert steps.times.means()["evaluate"] == pytest.approx(30.0 / 60)
    assert steps.times.means()["compute"] == pytest.approx(1.0)


def test_at_the_end_of_an_epoch_its_own_evaluation_counts():
    steps = Steps()
    steps.take(10, 1.0)
    steps.evaluate(60.0)
    steps.take(10, 1.0)
    steps.evaluate(30.0)
    assert steps.times.means()["evaluate"] == pytest.approx(30.0 / 10)


def test_seconds_that_went_back_with_a_checkpoint_count_as_none():
    steps = Steps()
    steps.take(2, 1.0)
    steps.seconds["evaluate"] -= 4.0
    steps.take(2, 1.0)
    assert steps.times.means()["evaluate"] == 0.0
