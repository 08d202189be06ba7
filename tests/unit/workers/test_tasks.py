from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits

from accordion_workers.data.digits import load_digits
from accordion_workers.spec.job import TaskSpec
from accordion_workers.tasks import TASKS
from accordion_workers.training.train_state import seeded_generators
from accordion_workers.user_code.load_task import load_task
from tests.unit.workers import datasets

SMALL = {
    "cifar-resnet18": {"channels": 4, "augment": False},
    "lm-lstm": {"tokens": "chars", "sequence": 8, "width": 8, "layers": 2, "samples": 64},
    "lm-transformer": {
        "tokens": "chars",
        "sequence": 8,
        "width": 8,
        "layers": 2,
        "heads": 2,
        "samples": 64,
    },
}
"""Options of tasks that are large by default."""


def task(name: str = "synthetic", **options):
    spec = TaskSpec(name=name, options=options)
    return load_task(spec.name, spec.options)


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """The option `data` of a task that needs one."""
    text = datasets.folder(tmp_path_factory.mktemp("text"), {"input.txt": datasets.TEXT.encode()})
    images = datasets.folder(tmp_path_factory.mktemp("images"), datasets.pictures(20, held_out=12))
    places = {"cifar-resnet18": images, "lm-lstm": text, "lm-transformer": text}
    return lambda name: {"data": str(places[name])} if name in places else {}


@pytest.fixture(params=TASKS)
def every_task(request, data_of):
    """Makes the task of the table anew."""
    return lambda: task(request.param, **data_of(request.param), **SMALL.get(request.param, {}))


def first_loss(made, step: int = 0) -> torch.Tensor:
    inputs, targets = made.train_data().batch(torch.arange(8))
    return made.loss(made.model()(inputs), targets, step=step)


def test_every_task_of_the_table_can_be_trained_and_measured(every_task):
    made = every_task()
    first_loss(made).backward()
    inputs, targets = made.eval_data().batch(torch.arange(8))
    metrics = made.metrics(made.model()(inputs).detach(), targets)
    assert "loss" in metrics
    assert all(value.dim() == 0 and math.isfinite(value) for value in metrics.values())


def test_loss_and_metrics_are_means_so_that_parts_can_be_weighted_by_their_size(every_task):
    made = every_task()
    inputs, targets = made.eval_data().batch(torch.arange(30))
    outputs = made.model()(inputs).detach()
    whole = made.metrics(outputs, targets)["loss"]
    parts = [
        made.metrics(outputs[s], targets[s])["loss"] * n
        for s, n in ((slice(10), 10), (slice(10, 30), 20))
    ]
    assert float(sum(parts) / 30) == pytest.approx(float(whole), rel=1e-5)


def test_one_task_serves_one_worker_group_after_the_other(every_task):
    """Worker processes keep it: a second group must find what the first one found."""
    made, losses = every_task(), []
    for _ in range(2):
        with seeded_generators(0, "cpu"):
            model = made.model()
            inputs, targets = made.train_data().batch(torch.arange(8))
            loss = made.loss(model(inputs), targets, step=0)
            loss.backward()
            torch.optim.SGD(model.parameters(), lr=1.0).step()
            losses.append(loss.item())
    assert losses[0] == losses[1]


def test_the_data_is_equal_on_all_workers_and_building_a_task_touches_no_generator(
    every_task,
):
    before = torch.get_rng_state()
    for data in zip(
        *((made.train_data(), made.eval_data()) for made in (every_task(), every_task())),
        strict=True,
    ):
        one, other = (part.batch(torch.arange(len(part))) for part in data)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["lm-lstm", "lm-transformer"])
def test_perplexity_is_a_geometric_mean_over_samples(data_of, name):
    made = task(name, **data_of(name), **SMALL[name])
    inputs, targets = made.eval_data().batch(torch.arange(20))
    outputs = made.model()(inputs).detach()
    whole = made.metrics(outputs, targets)["perplexity"]
    parts = [
        made.metrics(outputs[s], targets[s])["perplexity"].log() * n
        for s, n in ((slice(5), 5), (slice(5, 20), 15))
    ]
    assert made.geometric == ("perplexity",)
    assert float((sum(parts) / 20).exp()) == pytest.approx(float(whole), rel=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_a_task_that_reads_data_must_be_told_where_they_are(name):
    for options in ({}, {"data": ""}):
        with pytest.raises(ValueError, match=f"task {name} needs option 'data'; give path"):
            TaskSpec(name=name, options=options)


def test_an_option_of_choices_names_them(data_of):
    with pytest.raises(ValueError, match=r"tokens is 'bytes'; known are chars, words"):
        TaskSpec(name="lm-lstm", options={"data": "x", "tokens": "bytes"})


def test_heads_that_do_not_share_the_width_are_refused(data_of):
    with pytest.raises(ValueError, match="width is 8, which 3 heads cannot share"):
        task(
            "lm-transformer", **data_of("lm-transformer"), **SMALL["lm-transformer"] | {"heads": 3}
        )


def test_the_vocabulary_is_the_training_texts_and_as_large_as_asked(data_of):
    options = {**data_of("lm-lstm"), **SMALL["lm-lstm"], "tokens": "words", "vocabulary": 5}
    made = task("lm-lstm", **options)
    assert made.model().output.out_features == 5
    held_out, _ = made.eval_data().batch(torch.arange(len(made.eval_data())))
    assert set(held_out.flatten().tolist()) == {0, 1, 2, 3, 4}


def test_pictures_have_an_output_for_each_class(data_of):
    made = task("cifar-resnet18", **data_of("cifar-resnet18"), channels=4)
    assert made.model().output.out_features == len(datasets.CLASSES)


def test_only_training_pictures_are_augmented(data_of):
    made = task("cifar-resnet18", **data_of("cifar-resnet18"), channels=4)
    for data, alike in ((made.train_data(), False), (made.eval_data(), True)):
        one, other = (data.batch(torch.arange(8))[0] for _ in range(2))
        assert torch.equal(one, other) == alike


def test_the_digits_are_those_of_scikit_learn():
    theirs = sklearn_digits()
    ours = [*load_digits()]
    rows = torch.cat(
        [torch.cat([data.inputs * 16, data.targets[:, None].float()], dim=1) for data in ours]
    )
    expected = torch.cat(
        [torch.tensor(theirs.data), torch.tensor(theirs.target)[:, None]], dim=1
    ).float()
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_the_digits_are_split_1437_to_360_the_same_way_every_time():
    (train, held_out), (again, _) = load_digits(), load_digits()
    assert (len(train), len(held_out)) == (1437, 360)
    assert torch.equal(train.inputs, again.inputs)


def test_every_digit_keeps_its_part_in_the_held_out_samples():
    train, held_out = load_digits()
    all_counts = torch.bincount(train.targets, minlength=10) + torch.bincount(
        held_out.targets, minlength=10
    )
    counts = torch.bincount(held_out.targets, minlength=10)
    assert (counts - all_counts * 360 / 1797).abs().max() < 1


def test_the_held_out_samples_are_spread_over_the_whole_file():
    inputs = load_digits()[1].inputs
    rows = {
        tuple(row): place
        for place, row in enumerate((torch.tensor(sklearn_digits().data) / 16).float().tolist())
    }
    quarters = torch.bincount(
        torch.tensor([rows[tuple(row)] * 4 // 1797 for row in inputs.tolist()]), minlength=4
    )
    assert (
        quarters.min() > 60
    )  # 90 each if spread evenly; four standard deviations of a fair draw are 33


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
