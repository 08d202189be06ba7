"""What a step leaves behind that nobody took, or that took nothing from some layer: what was there
before it.
"""

from __future__ import annotations

import pytest
import torch
from torch.amp import GradScaler

from accordion.compress.compression_engine import DENSE, Engine
from accordion.compressors import COMPRESSORS, ladder_of, level_of
from accordion.session.training_warnings import TrainingWarning
from tests.unit.accordion.alone import alone
from tests.unit.accordion.lockstep import Cluster, draw_gradients, rank_level

SHAPES = {"used": (12, 10), "unused": (12, 10)}


def test_a_scaler_counts_its_finite_steps_anew_after_one_that_was_skipped():
    scaler, scales = GradScaler("cpu", init_scale=4.0, growth_interval=2), []
    with alone({"w": (4, 4)}, DENSE, scaler=scaler) as (ddp, session):
        for factor in (1.0, torch.inf, 1.0, 1.0):
            scaler.scale(factor * ddp()).backward()
            session.step()
            ddp.zero_grad()
            scales.append(scaler.get_scale())
    assert scales == [4, 2, 2, 4]


def test_half_skips_steps_until_the_scaled_gradient_fits_into_16_bits():
    scaler = GradScaler("cpu", init_scale=2.0**16)
    half = level_of("half", {}, name="low")
    with alone({"w": (4, 4)}, half, scaler=scaler) as (ddp, session):
        for _ in range(6):
            ddp.zero_grad()
            scale = scaler.get_scale()
            scaler.scale(3.0 * ddp()).backward()
            received = ddp.module.weights[0].grad / scale
            taken = session.step().taken
        torch.testing.assert_close(received, 3.0 * ddp.module.slopes[0], rtol=1e-3, atol=0)
    assert taken
    assert scaler.get_scale() < 2.0**16


@pytest.mark.parametrize(
    ("method", "size", "sentence"),
    [
        ("half", 1e6, r"weights\.0.*half.*bf16"),
        ("none", 1e37, r"weights\.0 are not finite, or too large for sums in fp32 .*1e\+34"),
    ],
)
def test_a_gradient_too_large_to_exchange_is_skipped_and_its_layer_named(method, size, sentence):
    def train() -> None:
        for _ in range(10):
            ddp.zero_grad()
            (size * ddp()).backward()
            assert not session.step().taken

    level, named = ladder_of(method)[0], pytest.warns(TrainingWarning, match=sentence)
    with alone({"w": (300, 300)}, level) as (ddp, session), named:
        train()


@pytest.mark.parametrize("size", [1e30, 1e35, 1e38])
@pytest.mark.parametrize("method", sorted(COMPRESSORS))
def test_a_huge_gradient_never_leaves_a_parameter_that_is_not_finite(method, size):
    with alone({"w": (300, 300)}, ladder_of(method)[0]) as (ddp, session):
        (size * ddp()).backward()
        taken = session.step().taken
        assert not taken or ddp.module.weights[0].grad.isfinite().all()


def _kept(engine: Engine, layer: str) -> list[torch.Tensor]:
    state = engine.state_dict()
    return [state["residuals"][layer], state["warm"][layer]]


@pytest.fixture(params=["both", "alternating"])
def cluster(request) -> Cluster:
    """One worker after a step of PowerSGD."""
    cluster = Cluster(SHAPES, 1)
    cluster.engines[0].feedback.keeps_old = True
    cluster.switch(level_of("powersgd", {"rank": 2, "factors": request.param}, name="low"))
    cluster.step(draw_gradients(SHAPES, 1, seed=0))
    return cluster


def test_a_layer_that_nobody_used_keeps_residual_and_warm_start_and_others_do_not(cluster):
    [engine] = cluster.engines
    before = {layer: _kept(engine, layer) for layer in SHAPES}
    cluster.exchange(draw_gradients(SHAPES, 1, seed=1))
    engine.restore_unused(["unused"])
    engine.commit_step()
    for layer, layers_before in before.items():
        same = [
            torch.equal(old, new)
            for old, new in zip(layers_before, _kept(engine, layer), strict=True)
        ]
        assert same == [layer == "unused"] * 2


@pytest.mark.parametrize("rank", [1, 3])
def test_a_layer_that_nobody_used_keeps_its_warm_start_at_another_rank(cluster, rank):
    [engine] = cluster.engines
    before = engine.state_dict()["warm"]["unused"]
    cluster.switch(rank_level(rank))
    cluster.exchange(draw_gradients(SHAPES, 1, seed=1))
    engine.restore_unused(["unused"])
    engine.commit_step()
    after = engine.state_dict()["warm"]["unused"]
    rows, columns = map(min, before.shape, after.shape)
    assert after.shape[0] == rank
    assert torch.equal(before[:rows, :columns], after[:rows, :columns])


def test_a_skipped_step_after_one_without_a_layer_leaves_no_trace(cluster):
    [engine] = cluster.engines
    cluster.exchange(draw_gradients(SHAPES, 1, seed=1))
    engine.restore_unused(["unused"])
    engine.commit_step()
    before = {layer: _kept(engine, layer) for layer in SHAPES}
    cluster.exchange(draw_gradients(SHAPES, 1, seed=2), is_skipped=True)
    engine.rollback_step()
    engine.commit_step()  # of a step that brought nothing
    for layer, layers_before in before.items():
        assert all(
            torch.equal(old, new)
            for old, new in zip(layers_before, _kept(engine, layer), strict=True)
        )
