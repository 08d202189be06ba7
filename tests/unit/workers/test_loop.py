from __future__ import annotations

import math
import pickle

import pytest
import torch

from accordion_workers.common.errors import CheckpointError, LossNotFinite, TaskRaised
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.clock import Clock, Phases
from accordion_workers.training.evaluation import (
    Summary,
    is_evaluation_due,
    mean_loss,
    mean_metrics,
    parameter_digest,
)
from accordion_workers.training.train_state import LossSum, seeded_generators


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 0.0
        self.communicated = self.encoded = 0.0

    def phases(self) -> Phases:
        return Phases(
            clock=Clock(elapsed=lambda: self.time),
            exchange_times=lambda: (self.communicated, self.encoded),
        )


def summary(loss: float, samples: int, **metrics: float) -> Summary:
    totals = {name: value * samples for name, value in metrics.items()}
    return Summary(
        loss_total=loss * samples,
        loss_samples=samples,
        metric_totals=totals,
        eval_samples=samples,
        parameters="x",
    )


@pytest.mark.parametrize(("every", "due"), [(1, [0, 1, 2]), (2, [1, 2]), (3, [2]), (100, [2])])
def test_the_last_epoch_is_always_evaluated(every, due):
    training = {"epochs": 3, "evaluate_every_epochs": every}
    spec = JobSpec.model_validate({"task": {"name": "synthetic"}, "training": training})
    epochs = range(spec.training.epochs)
    assert [one for one in epochs if is_evaluation_due(spec, one, is_last=one == 2)] == due


def test_waiting_for_collectives_is_taken_out_of_the_phase_in_which_it_passed():
    hand = Hand()
    phases = hand.phases()
    with phases("compute"):
        hand.time, hand.communicated = 5.0, 2.0
    assert (phases.seconds["compute"], phases.seconds["communicate"]) == (3.0, 2.0)


def test_encoding_is_taken_out_of_the_wait_for_collectives():
    hand = Hand()
    phases = hand.phases()
    with phases("compute"):
        hand.time, hand.communicated, hand.encoded = 5.0, 2.0, 0.5
    assert [phases.seconds[name] for name in ("compute", "communicate", "encode")] == [3, 1.5, 0.5]


def test_a_phase_inside_another_is_counted_once():
    hand = Hand()
    phases = hand.phases()
    with phases("compute"):
        hand.time, hand.communicated, hand.encoded = 1.0, 0.5, 0.25
        with phases("load"):
            hand.time, hand.communicated, hand.encoded = 4.0, 1.5, 0.5
        hand.time, hand.communicated = 6.0, 2.5
    assert phases.seconds["load"] == 2.0
    assert phases.seconds["compute"] == 1.5
    assert (phases.seconds["communicate"], phases.seconds["encode"]) == (2.0, 0.5)
    assert sum(phases.seconds.values()) == hand.time


def test_laps_count_as_load_until_the_load_ends():
    hand = Hand()
    phases = hand.phases()
    phases.count_lap("compute")
    hand.time = 1.0
    phases.start_step()
    hand.time = 3.0
    phases.end_load()
    hand.time, hand.communicated = 6.0, 1.0
    phases.end_load()
    phases.count_lap("compute")
    hand.time = 10.0
    phases.count_lap("optimize")
    counted = {name: seconds for name, seconds in phases.seconds.items() if seconds}
    assert counted == {"load": 2.0, "compute": 2.0, "communicate": 1.0, "optimize": 4.0}


def test_seconds_of_a_phase_add_up_and_count_when_the_block_fails():
    hand = Hand()
    phases = hand.phases()

    def fail_after(seconds: float) -> None:
        with phases("evaluate"):
            hand.time += seconds
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fail_after(1.5)
    assert phases.seconds["evaluate"] == 3.0


def test_the_mean_loss_weights_workers_by_their_samples():
    assert mean_loss([summary(1.0, 10), summary(4.0, 20)]) == pytest.approx(3.0)


def test_a_mean_loss_that_is_not_finite_is_none():
    assert mean_loss([summary(1.0, 10), summary(math.nan, 1)]) is None


def test_metrics_are_averaged_over_samples_though_a_worker_had_none():
    parts = [
        summary(0.0, 30, accuracy=0.9),
        Summary(loss_total=0.0, loss_samples=0, parameters="x"),
    ]
    assert mean_metrics(parts) == {"accuracy": pytest.approx(0.9)}


def test_a_metric_that_is_not_finite_is_left_out():
    assert mean_metrics([summary(0.0, 1, error=math.inf, accuracy=0.5)]) == {"accuracy": 0.5}


def perplexity(loss: float, samples: int) -> Summary:
    return Summary(
        loss_total=0.0,
        loss_samples=0,
        metric_totals={"perplexity": loss * samples, "loss": loss * samples},
        geometric=("perplexity",),
        eval_samples=samples,
        parameters="x",
    )


def test_perplexity_is_exp_of_the_mean_loss_over_all_samples():
    means = mean_metrics([perplexity(1.0, 30), perplexity(4.0, 10)])
    assert means == {"perplexity": pytest.approx(math.exp(1.75)), "loss": pytest.approx(1.75)}


def test_a_perplexity_that_is_too_large_for_a_float_is_left_out():
    assert mean_metrics([perplexity(1000.0, 1)]) == {"loss": 1000.0}


def test_the_digest_of_the_parameters_sees_one_changed_bit():
    model = torch.nn.Linear(3, 2)
    before = parameter_digest(model)
    assert parameter_digest(model) == before
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert parameter_digest(model) != before


def test_the_digest_reads_half_precision_and_scalars():
    model = torch.nn.Module()
    model.scale = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
    assert len(parameter_digest(model)) == 64


def test_losses_are_summed_over_samples():
    total = LossSum.zero("cpu")
    total.add(torch.tensor(2.0), 3)
    total.add(torch.tensor(1.0), 1)
    assert (float(total.total), total.samples) == (7.0, 4)


def test_seeded_draws_repeat_and_leave_the_generator_where_it_was():
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with seeded_generators(5, "cpu"):
            draws.append(torch.rand(3))
    assert torch.equal(*draws)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            TaskRaised(3, 0, "ZeroDivisionError: division by zero"),
            "raised in step 3 (epoch 0): ZeroDivisionError: division by zero",
        ),
        (
            TaskRaised(None, None, "OSError: no file"),
            "the task raised before training began: OSError: no file",
        ),
        (
            LossNotFinite(12, 0, 10),
            "not finite in 10 steps in a row, up to step 12 (epoch 0); lower training.optimizer.lr",
        ),
        (CheckpointError("torn"), "torn"),
    ],
)
def test_an_error_keeps_its_sentence_and_fields_when_it_is_pickled(error, sentence):
    copy = pickle.loads(pickle.dumps(error))
    assert sentence in str(copy)
    assert (type(copy), copy.args, vars(copy)) == (type(error), error.args, vars(error))
