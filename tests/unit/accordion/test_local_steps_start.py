"""The start before local steps ends when the workers' agreement has vanished."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Report
from accordion.compress.statistics import GradientSums, estimate_agreement
from accordion.decide.training_stage import TrainingStage

AUTO = LocalSteps(low=4, high=16, start_steps="auto")
LAYERS = {"a": torch.Size([32, 32]), "b": torch.Size([100, 80])}


def window(step: int, agreement: float | None) -> Report:
    return Report(
        epoch=0,
        step=step,
        epoch_end=False,
        world_size=2,
        global_batch=64,
        lr=0.1,
        next_lr=0.1,
        agreement=agreement,
    )


def after(*agreements: float | None) -> TrainingStage:
    stage = TrainingStage()
    for number, agreement in enumerate(agreements, start=1):
        stage = stage.after(window(10 * number, agreement))
    return stage


def test_a_rate_of_zero_has_fallen_only_if_it_was_larger():
    zero = replace(window(10, None), lr=0.0, next_lr=0.0)
    assert TrainingStage().after(zero).fall == 1.0
    assert TrainingStage().after(window(5, None)).after(zero).fall > 1e6


def test_two_quiet_windows_in_a_row_end_the_start_after_as_many_steps_again():
    stage = after(0.9, 0.05, 0.5, 0.09, -0.1, 0.9)
    assert stage.quiet_step == 50
    lengths = [stage.round_length(AUTO, step) for step in (50, 99, 100, 1000)]
    assert lengths == [1, 1, 4, 4]


@pytest.mark.parametrize("agreements", [(), (0.05,), (0.05, 0.1, 0.05), (None, None, None)])
def test_without_two_quiet_windows_the_start_goes_on(agreements):
    assert after(*agreements).round_length(AUTO, 10**9) == 1


def test_reports_without_an_agreement_neither_count_nor_interrupt():
    assert after(0.05, None, 0.05).quiet_step == 30


def test_changes_of_parameters_under_an_override_tell_nothing_of_gradients():
    rounds = replace(window(20, 0.05), local_steps=8)
    assert after(0.05).after(rounds).quiet_step is None


def summaries(gradients: torch.Tensor) -> torch.Tensor:
    """The averaged summary of workers with these gradients, (workers, steps, values)."""
    rows = []
    for worker in gradients:
        sums = GradientSums(LAYERS, seed=0)
        for step in worker:
            first, second = step.split([1024, 8000])
            sums.add("a", first.view(32, 32))
            sums.add("b", second.view(100, 80))
            sums.commit()
        rows.append(sums.summary(torch.device("cpu")))
    return torch.stack(rows).mean(0)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_agreement_is_1_for_equal_gradients_and_near_0_for_independent_ones(workers):
    draw = torch.Generator().manual_seed(workers)
    equal = torch.randn(1, 3, 9024, generator=draw).expand(workers, -1, -1)
    assert estimate_agreement(summaries(equal), workers) == pytest.approx(1.0, abs=1e-5)
    noise = torch.randn(workers, 3, 9024, generator=draw)
    assert abs(estimate_agreement(summaries(noise), workers)) < 0.1
    mixed = equal + noise
    assert 0.4 < estimate_agreement(summaries(mixed), workers) < 0.6


def test_opposed_workers_disagree_and_nothing_is_known_of_one_or_of_zeros():
    ones = torch.ones(1, 2, 9024)
    assert estimate_agreement(summaries(torch.cat([ones, -ones])), 2) == pytest.approx(-1.0)
    assert estimate_agreement(summaries(ones), 1) is None
    assert estimate_agreement(summaries(torch.zeros(2, 2, 9024)), 2) is None
