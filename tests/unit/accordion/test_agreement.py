"""What is measured at the start of training: the workers' agreement, the fall of the rate."""

from __future__ import annotations

import pytest
import torch

from accordion.base.messages import Report
from accordion.compress.statistics import GradientSums, estimate_agreement
from accordion.decide.training_stage import TrainingStage
from accordion.session.saved_states import MeanState, disown_window
from tests.unit.accordion.lockstep import Cluster, draw_gradients

SHAPE = {"w": (12, 10)}
LAYERS = {"a": torch.Size([32, 32]), "b": torch.Size([100, 80])}


def report(step: int, rate: float) -> Report:
    return Report(
        epoch=0,
        step=step,
        epoch_end=False,
        world_size=2,
        global_batch=64,
        lr=rate,
        next_lr=rate,
    )


def test_a_rate_of_zero_has_fallen_only_if_it_was_larger():
    zero = report(10, 0.0)
    assert TrainingStage().after(zero).fall == 1.0
    assert TrainingStage().after(report(5, 0.1)).after(zero).fall > 1e6


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


def test_sums_that_another_worker_made_say_nothing_of_the_agreement():
    old, new = [Cluster(SHAPE, workers) for workers in (3, 2)]
    old.step(draw_gradients(SHAPE, 3, 0))
    mean = MeanState(3)
    for engine in old.engines:
        mean.add({"engine": engine.state_dict()})
    state = mean.result()["engine"]
    for engine in new.engines:
        engine.load_state_dict(state)
    assert _agreement(new) is None
    for engine in new.engines:
        engine.sums.clear()
    new.step(draw_gradients(SHAPE, 2, 1))
    assert _agreement(new) is not None


def test_a_window_without_steps_belongs_to_whoever_fills_it():
    (engine,) = Cluster(SHAPE, 1).engines
    state = {"engine": engine.state_dict()}
    assert disown_window(state)["engine"]["window"]["are_own"] is True


def _agreement(cluster: Cluster) -> float | None:
    rows = [engine.sums.summary(torch.device("cpu")) for engine in cluster.engines]
    return estimate_agreement(torch.stack(rows).mean(0), len(rows))
