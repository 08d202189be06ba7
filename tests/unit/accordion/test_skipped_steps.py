"""What a step leaves behind that nobody took, or that took nothing from some layer: what was there
before it.
"""

from __future__ import annotations

import pytest
import torch
from torch.amp import GradScaler

from accordion.compression_engine import DENSE, Engine
from accordion.compressors import level_of
from tests.unit.accordion.alone import alone
from tests.unit.accordion.lockstep import Cluster, draw_gradients

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


def _kept(engine: Engine, layer: str) -> list[torch.Tensor]:
    state = engine.state_dict()
    return [state["residuals"][layer], state["warm"][layer]]


@pytest.fixture(params=["both", "alternating"])
def cluster(request) -> Cluster:
    """One worker after a step of PowerSGD."""
    cluster = Cluster(SHAPES, 1)
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


def test_a_skipped_step_after_one_without_a_layer_leaves_no_trace(cluster):
    [engine] = cluster.engines
    cluster.exchange(draw_gradients(SHAPES, 1, seed=1))
    engine.restore_unused(["unused"])
    engine.commit_step()
    before = {layer: _kept(engine, layer) for layer in SHAPES}
    cluster.exchange(draw_gradients(SHAPES, 1, seed=2))
    engine.rollback_step()
    engine.commit_step()  # of a step that brought nothing
    for layer, layers_before in before.items():
        assert all(
            torch.equal(old, new)
            for old, new in zip(layers_before, _kept(engine, layer), strict=True)
        )
