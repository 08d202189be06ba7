"""Residuals across world sizes, and the sketch that the detector's statistic comes from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.compressors import ladder_of
from accordion.engine import Engine
from accordion.errors import StateError
from accordion.messages import LayerInfo
from accordion.statistics import SKETCH_SIZE, GradientSums, norms, seeded, sketch
from tests.unit.accordion.lockstep import FEEDBACK_METHODS, Cluster, draw_gradients

CPU = torch.device("cpu")
SHAPE = {"w": (12, 10)}


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
@given(before=st.integers(1, 4), after=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_group_of_another_size_owes_what_the_old_one_owed(method, before, after, seed):
    old, new = Cluster(SHAPE, before), Cluster(SHAPE, after)
    old.switch(ladder_of(method)[1])
    old.step(draw_gradients(SHAPE, before, seed))
    states = [engine.state_dict() for engine in old.engines]
    for rank, engine in enumerate(new.engines):
        engine.load_state_dict(states, rank if before == after else -1)
    like = torch.zeros(SHAPE["w"])
    torch.testing.assert_close(new.mean_residual("w", like), old.mean_residual("w", like), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
def test_saved_loaded_and_continued_is_never_stopped(method):
    straight, resumed = Cluster(SHAPE, 2), Cluster(SHAPE, 2)
    straight.switch(ladder_of(method)[1])
    resumed.switch(ladder_of(method)[1])
    straight.step(draw_gradients(SHAPE, 2, 0))
    states = [engine.state_dict() for engine in straight.engines]
    for rank, engine in enumerate(resumed.engines):
        engine.load_state_dict(states, rank)
    gradients = draw_gradients(SHAPE, 2, 1)
    assert torch.equal(straight.step(gradients)[0]["w"], resumed.step(gradients)[0]["w"])
    assert resumed.engines[0].sums.steps == 2
    assert resumed.engines[0].ledger.total == straight.engines[0].ledger.total


def test_a_state_of_another_model_is_refused_by_layer_name():
    old = Cluster({"other": (12, 10)}, 1)
    old.switch(ladder_of("topk")[1])
    old.step(draw_gradients({"other": (12, 10)}, 1, 0))
    engine = Engine([LayerInfo(name="w", shape=(12, 10))], seed=0, world_size=1)
    with pytest.raises(StateError, match="unexpected \\['other'\\]"):
        engine.load_state_dict([old.engines[0].state_dict()], 0)


def test_a_small_layer_has_an_exact_norm():
    values = torch.randn(SKETCH_SIZE, generator=torch.Generator().manual_seed(0))
    row = sketch(values, seeded(0, "w"))
    assert norms(["w"], row.unsqueeze(0))["w"] == pytest.approx(values.norm().item(), rel=1e-6)


def test_the_sketch_of_a_large_layer_has_its_norm_within_three_standard_errors():
    # one standard error of a sketch of 1,024 is 2.2 %; over 20 layers the worst stays below 3.5 of them
    draw = torch.Generator().manual_seed(0)
    for layer in range(20):
        values = torch.randn(50_000, generator=draw)
        estimate = sketch(values, seeded(0, f"layer {layer}")).norm()
        assert estimate.item() == pytest.approx(values.norm().item(), rel=0.08)


def test_sketches_averaged_over_workers_are_the_sketch_of_the_mean():
    sums = [GradientSums({"w": torch.Size((60, 50))}) for _ in range(2)]
    gradients = [torch.randn(60, 50, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for own, gradient in zip(sums, gradients, strict=True):
        own.add("w", gradient)
        own.commit()
    averaged = torch.stack([own.sketches(3, CPU) for own in sums]).mean(0)
    of_mean = sketch(torch.stack(gradients).mean(0).view(-1), seeded(3, "sketch:w"))
    torch.testing.assert_close(averaged[0], of_mean, rtol=0, atol=1e-4)  # fp32 sums in another order


def test_the_statistic_does_not_depend_on_the_number_of_steps():
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    sums = GradientSums({"w": torch.Size((8, 8))})
    for _ in range(5):
        sums.add("w", gradient)
        sums.commit()
    assert norms(["w"], sums.sketches(0, CPU))["w"] == pytest.approx(gradient.norm().item(), rel=1e-5)


def test_an_open_window_continues_after_a_change_of_world_size_with_the_mean_of_its_sums():
    old = [GradientSums({"w": torch.Size((2, 2))}) for _ in range(2)]
    for rank, own in enumerate(old):
        own.add("w", torch.full((2, 2), float(rank)))
        own.commit()
    new = GradientSums({"w": torch.Size((2, 2))})
    new.load_state_dict([own.state_dict() for own in old], -1)
    assert new.steps == 1
    assert norms(["w"], new.sketches(0, CPU))["w"] == pytest.approx(1.0)
