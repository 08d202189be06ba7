from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits

from workers.data.digits import load_digits
from workers.spec import TaskSpec
from workers.tasks import TASKS
from workers.tasks.base import load_task


def task(name: str = "synthetic", **options):
    return load_task(TaskSpec(name=name, options=options))


def first_loss(made, step: int = 0) -> torch.Tensor:
    inputs, targets = made.train_data().batch(torch.arange(8))
    return made.loss(made.model()(inputs), targets, step=step)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_the_table_can_be_trained_and_measured(name):
    made = task(name)
    first_loss(made).backward()
    inputs, targets = made.eval_data().batch(torch.arange(8))
    metrics = made.metrics(made.model()(inputs).detach(), targets)
    assert "loss" in metrics
    assert all(value.dim() == 0 and math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", TASKS)
def test_loss_and_metrics_are_means_so_that_parts_can_be_weighted_by_their_size(name):
    made = task(name)
    inputs, targets = made.eval_data().batch(torch.arange(30))
    outputs = made.model()(inputs).detach()
    whole = made.metrics(outputs, targets)["loss"]
    parts = [made.metrics(outputs[s], targets[s])["loss"] * n for s, n in ((slice(10), 10), (slice(10, 30), 20))]
    assert float(sum(parts) / 30) == pytest.approx(float(whole), rel=1e-5)


def test_the_digits_are_those_of_scikit_learn():
    theirs = sklearn_digits()
    ours = [*load_digits()]
    rows = torch.cat([torch.cat([data.inputs * 16, data.targets[:, None].float()], dim=1) for data in ours])
    expected = torch.cat([torch.tensor(theirs.data), torch.tensor(theirs.target)[:, None]], dim=1).float()
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_the_digits_are_split_1437_to_360_the_same_way_every_time():
    (train, held_out), (again, _) = load_digits(), load_digits()
    assert (len(train), len(held_out)) == (1437, 360)
    assert torch.equal(train.inputs, again.inputs)


def test_every_digit_keeps_its_part_in_the_held_out_samples():
    train, held_out = load_digits()
    all_counts = torch.bincount(train.targets, minlength=10) + torch.bincount(held_out.targets, minlength=10)
    counts = torch.bincount(held_out.targets, minlength=10)
    assert (counts - all_counts * 360 / 1797).abs().max() < 1


def test_the_held_out_samples_are_spread_over_the_whole_file():
    inputs = load_digits()[1].inputs
    rows = {tuple(row): place for place, row in enumerate((torch.tensor(sklearn_digits().data) / 16).float().tolist())}
    quarters = torch.bincount(torch.tensor([rows[tuple(row)] * 4 // 1797 for row in inputs.tolist()]), minlength=4)
    assert quarters.min() > 60  # 90 each if spread evenly; four standard deviations of a fair draw are 33


def test_digits_lie_between_zero_and_one():
    inputs = load_digits()[0].inputs
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)


def test_synthetic_raises_in_the_step_that_was_asked_for_and_in_no_other():
    made = task(raise_at_step=3)
    first_loss(made, step=2)
    first_loss(made, step=4)
    with pytest.raises(RuntimeError, match="step 3 is the one"):
        first_loss(made, step=3)


def test_synthetic_loses_its_loss_from_the_step_that_was_asked_for():
    made = task(nan_at_step=3)
    assert [bool(first_loss(made, step=step).isnan()) for step in (2, 3, 4)] == [False, True, True]


def test_synthetic_is_as_large_as_asked():
    made = task(width=12, depth=3, samples=5000)
    shapes = [tuple(parameter.shape) for parameter in made.model().parameters()]
    assert shapes == [(12, 12), (12,)] * 3
    assert len(made.train_data()) == 5000


def test_synthetic_data_are_the_same_on_every_worker_and_touch_no_global_generator():
    before = torch.get_rng_state()
    one, other = (task().train_data().batch(torch.arange(5)) for _ in range(2))
    assert torch.equal(one[0], other[0])
    assert torch.equal(before, torch.get_rng_state())
