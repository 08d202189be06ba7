from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from accordion_workers.spec.job import JobSpec
from accordion_workers.spec.training import TrainingSpec
from accordion_workers.training.rate_shapes import (
    Cosine,
    OneCycle,
    Steps,
    Table,
    WarmupStableDecay,
)
from accordion_workers.training.schedule import (
    BatchChange,
    BatchScaling,
    Schedule,
    build_scaling,
    build_schedule,
)

STEPS = 23


def rates(schedule: Schedule, epochs: int) -> list[float]:
    return [schedule.step_rate(e, (s + 1) / STEPS) for e in range(epochs) for s in range(STEPS)]


def test_the_rate_is_multiplied_by_the_factor_at_the_start_of_each_named_epoch():
    schedule = Schedule(lr=1.0, shape=Steps((2, 3), 0.5))
    assert [schedule.epoch_rate(epoch) for epoch in range(5)] == [1.0, 1.0, 0.5, 0.25, 0.25]


def test_the_rate_grows_by_equal_steps_and_is_whole_at_the_end_of_the_warm_up():
    warm = rates(Schedule(lr=0.1, warmup_epochs=2), 3)
    growth = {round(later - earlier, 12) for earlier, later in pairwise(warm[: 2 * STEPS])}
    assert growth == {round(0.1 / (2 * STEPS), 12)}
    assert warm[2 * STEPS - 1 :] == [0.1] * (STEPS + 1)


def test_the_rate_that_the_detector_sees_knows_no_warm_up():
    schedule = Schedule(lr=0.1, warmup_epochs=5)
    assert [schedule.epoch_rate(epoch) for epoch in range(6)] == [0.1] * 6


def test_without_a_warm_up_the_first_step_has_the_whole_rate():
    assert Schedule(lr=0.1).step_rate(0, 1 / STEPS) == 0.1


def test_a_drop_in_the_middle_of_the_warm_up_holds_at_once():
    schedule = Schedule(lr=1.0, shape=Steps((1,), 0.1), warmup_epochs=2)
    assert schedule.step_rate(1, 1.0) == pytest.approx(0.1)


def test_a_cosine_falls_from_the_peak_to_its_floor_and_never_rises():
    schedule = Schedule(lr=0.2, shape=Cosine(4, 0.1))
    falling = rates(schedule, 4)
    assert all(later < earlier for earlier, later in pairwise(falling))
    assert schedule.epoch_rate(0) == 0.2
    assert schedule.epoch_rate(2) == pytest.approx(0.2 * 0.55)
    assert falling[-1] == schedule.epoch_rate(4) == schedule.epoch_rate(9) == pytest.approx(0.02)


def test_a_cosine_counts_the_epochs_of_its_warm_up():
    schedule = Schedule(lr=1.0, shape=Cosine(4), warmup_epochs=1)
    assert schedule.step_rate(0, 0.5) == pytest.approx(0.5 * schedule.epoch_rate(0), rel=0.05)
    assert schedule.step_rate(1, 1.0) == schedule.epoch_rate(2)


@pytest.mark.parametrize(
    ("decay", "name"),
    [
        ({"shape": "cosine", "at": [1]}, "at"),
        ({"floor": 0.5}, "floor"),
        ({"shape": "wsd", "rise": 0.5}, "rise"),
        ({"shape": "one_cycle", "part": 0.5}, "part"),
        ({"shape": "cosine", "points": [[0, 1], [2, 0]]}, "points"),
    ],
)
def test_a_decay_refuses_what_its_shape_has_not(decay, name):
    with pytest.raises(ValueError, match=f"shape .* has .*, and no {name}; leave it out, or take"):
        TrainingSpec.model_validate({"lr_decay": decay})


def test_wsd_stays_at_the_peak_and_falls_in_a_straight_line_in_the_last_part():
    schedule = Schedule(lr=1.0, shape=WarmupStableDecay(10, 0.2, 0.5))
    told = [schedule.epoch_rate(epoch) for epoch in range(12)]
    assert told == pytest.approx([1.0] * 9 + [0.75, 0.5, 0.5])


def test_a_part_of_1_is_a_linear_decay():
    schedule = Schedule(lr=1.0, shape=WarmupStableDecay(4, 1.0))
    told = [schedule.epoch_rate(epoch) for epoch in range(5)]
    assert told == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_one_cycle_is_that_of_pytorch():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.4, total_steps=11, pct_start=0.3, final_div_factor=1e4
    )
    # Theirs ends its rise at step 0.3 * 11 - 1 of 10.
    schedule = Schedule(lr=0.4, shape=OneCycle(10, 0.23, 1.0 / 25e4))
    for epoch in range(11):
        assert schedule.epoch_rate(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        if epoch < 10:
            optimizer.step()
            theirs.step()


def test_a_table_runs_in_straight_lines_and_stays_at_its_ends():
    schedule = Schedule(lr=2.0, shape=Table(((1, 0.5), (2, 1.0), (4, 0.0))))
    places = [(0, 0.5), (1, 0.0), (1, 0.5), (2, 0.0), (3, 0.0), (3, 0.5), (9, 0.0)]
    told = [schedule.step_rate(epoch, done) for epoch, done in places]
    assert told == pytest.approx([1.0, 1.0, 1.5, 2.0, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "shape table has 0 points; give at least two"),
        ([[0, 1]], "shape table has 1 points"),
        ([[3, 1], [3, 0]], "epoch 3 after epoch 3; give growing epochs"),
    ],
)
def test_a_table_that_is_none_is_refused(points, message):
    with pytest.raises(ValueError, match=message):
        TrainingSpec.model_validate({"lr_decay": {"shape": "table", "points": points}})


@pytest.mark.parametrize(
    ("decay", "shape"),
    [
        ({"shape": "wsd", "part": 0.3}, WarmupStableDecay(7, 0.3)),
        ({"shape": "one_cycle", "floor": 0.1}, OneCycle(7, 0.3, 0.1)),
        ({"shape": "table", "points": [[0, 1], [5.5, 0]]}, Table(((0, 1), (5.5, 0)))),
    ],
)
def test_a_spec_names_a_shape(decay, shape):
    training = TrainingSpec.model_validate({"epochs": 7, "lr_decay": decay})
    assert build_schedule(training).shape == shape


def test_a_spec_names_a_cosine():
    training = TrainingSpec.model_validate(
        {"epochs": 7, "lr_decay": {"shape": "cosine", "floor": 0.02}}
    )
    assert build_schedule(training) == Schedule(lr=0.1, shape=Cosine(7, 0.02))


def test_a_spec_names_the_schedule():
    training = TrainingSpec.model_validate(
        {"optimizer": {"lr": 0.4}, "lr_decay": {"at": [4], "factor": 0.2}, "warmup": {"epochs": 3}}
    )
    assert build_schedule(training) == Schedule(lr=0.4, shape=Steps((4,), 0.2), warmup_epochs=3)


def factors(scaling: BatchScaling, sizes: list[int]) -> list[float]:
    """Learning rate of each step, given its batch size."""
    change, made = BatchChange(size=sizes[0]), []
    for step, size in enumerate(sizes):
        change = scaling.after(change, size=size, step=step)
        made.append(scaling.factor(change, step))
    return made


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rate_follows_the_batch_by_the_rule_of_the_job(rule, factor):
    assert factors(BatchScaling(low=64, rule=rule), [64, 64, 256, 256]) == [
        1.0,
        1.0,
        factor,
        factor,
    ]


def test_the_rate_grows_by_equal_steps_after_the_batch_grew_and_ends_whole():
    made = factors(BatchScaling(low=64, rule="linear", warmup_steps=4), [64] * 2 + [320] * 6)
    assert made == [1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]


def test_a_shrinking_batch_lowers_the_rate_at_once_though_it_was_still_growing():
    made = factors(BatchScaling(low=64, rule="linear", warmup_steps=4), [64] + [320] * 2 + [64] * 2)
    assert made == [1.0, 2.0, 3.0, 1.0, 1.0]


def test_a_second_growth_begins_where_the_first_one_was():
    made = factors(BatchScaling(low=64, rule="linear", warmup_steps=2), [64, 192, 320, 320, 320])
    assert made == [1.0, 2.0, 3.5, 5.0, 5.0]


def test_a_job_without_batch_levels_scales_nothing():
    job = JobSpec.model_validate({"task": {"name": "synthetic"}})
    assert factors(build_scaling(job), [64, 512]) == [1.0, 1.0]


def test_a_job_with_batch_levels_names_the_scaling():
    batch = {"low": 32, "high": 128, "lr_scaling": "sqrt", "warmup_steps": 7}
    job = JobSpec.model_validate({"task": {"name": "synthetic"}, "batch": batch})
    assert build_scaling(job) == BatchScaling(low=32, rule="sqrt", warmup_steps=7)
