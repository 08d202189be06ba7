from __future__ import annotations

from itertools import pairwise

import pytest

from workers.schedule import Schedule, schedule_of
from workers.spec import TrainingSpec

STEPS = 23


def rates(schedule: Schedule, epochs: int) -> list[float]:
    return [schedule.step_rate(e, s, steps_per_epoch=STEPS) for e in range(epochs) for s in range(STEPS)]


def test_the_rate_is_multiplied_by_the_factor_at_the_start_of_each_named_epoch():
    schedule = Schedule(lr=1.0, decay_at=(2, 3), decay_factor=0.5)
    assert [schedule.epoch_rate(epoch) for epoch in range(5)] == [1.0, 1.0, 0.5, 0.25, 0.25]


def test_the_rate_grows_by_equal_steps_over_the_warm_up_and_reaches_the_whole_rate_at_its_end():
    warm = rates(Schedule(lr=0.1, warmup_epochs=2), 3)
    growth = {round(later - earlier, 12) for earlier, later in pairwise(warm[: 2 * STEPS])}
    assert growth == {round(0.1 / (2 * STEPS), 12)}
    assert warm[2 * STEPS - 1 :] == [0.1] * (STEPS + 1)


def test_the_rate_that_the_detector_sees_knows_no_warm_up():
    schedule = Schedule(lr=0.1, warmup_epochs=5)
    assert [schedule.epoch_rate(epoch) for epoch in range(6)] == [0.1] * 6


def test_without_a_warm_up_the_first_step_has_the_whole_rate():
    assert Schedule(lr=0.1).step_rate(0, 0, steps_per_epoch=STEPS) == 0.1


def test_a_drop_in_the_middle_of_the_warm_up_holds_at_once():
    schedule = Schedule(lr=1.0, decay_at=(1,), decay_factor=0.1, warmup_epochs=2)
    assert schedule.step_rate(1, 0, steps_per_epoch=1) == pytest.approx(0.1)


def test_a_spec_names_the_schedule():
    training = TrainingSpec.model_validate(
        {"optimizer": {"lr": 0.4}, "lr_decay": {"at": [4], "factor": 0.2}, "warmup": {"epochs": 3}}
    )
    assert schedule_of(training) == Schedule(lr=0.4, decay_at=(4,), decay_factor=0.2, warmup_epochs=3)
