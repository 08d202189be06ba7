"""Times of rounds, by a clock that the test sets."""

from __future__ import annotations

import pytest

from accordion.session.round_times import RoundTime, RoundTimes


class Steps:
    """Steps by a clock of their own."""

    def __init__(self) -> None:
        self.now_s, self.waited_s = 100.0, 7.0
        self.times = RoundTimes(lambda: self.now_s)

    def local_round(self, steps: list[float], exchange_s: float) -> None:
        for step_s in steps:
            self.now_s += step_s
            self.times.pass_local_step()
        self.now_s += 1000.0 * (len(steps) == 1)
        with self.times.exchange():
            self.now_s += exchange_s

    def exchanged(self, step_s: float, wait_s: float) -> None:
        self.now_s += step_s + wait_s
        self.waited_s += wait_s
        self.times.pass_exchanged_step(self.waited_s)


def check(times: RoundTimes, exchange_s: float, step_s: float) -> None:
    assert times.medians() == RoundTime(
        exchange_s=pytest.approx(exchange_s), step_s=pytest.approx(step_s)
    )


def test_the_first_step_of_a_round_may_come_after_a_pause() -> None:
    steps = Steps()
    steps.local_round([60.0, 0.25, 0.5], 3.0)
    check(steps.times, 3.0, 0.375)


def test_medians_are_over_rounds_and_leave_out_rounds_of_one_step() -> None:
    steps = Steps()
    for step_s, exchange_s in ((1.0, 2.0), (8.0, 3.0), (1.5, 90.0)):
        steps.local_round([step_s, step_s], exchange_s)
        steps.local_round([0.1], 0.1)
    check(steps.times, 3.0, 1.5)


def test_a_step_with_an_exchange_is_a_round_of_one_step() -> None:
    steps = Steps()
    for wait_s in (0.9, 0.125, 0.25, 0.125):
        steps.exchanged(2.0, wait_s)
    check(steps.times, 0.125, 2.0)


def test_nothing_is_known_at_first_and_after_another_decision() -> None:
    steps = Steps()
    assert steps.times.medians() is None
    steps.exchanged(2.0, 0.5)
    assert steps.times.medians() is None
    steps.exchanged(2.0, 0.5)
    steps.times.clear()
    steps.exchanged(2.0, 0.5)
    assert steps.times.medians() is None
