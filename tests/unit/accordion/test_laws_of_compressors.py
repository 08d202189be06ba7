"""Laws that hold for every row of the table of compressors, on W pretended workers in lockstep."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.base.messages import LayerInfo, Report
from accordion.compress.statistics import estimate_norms
from accordion.compress.step_signals import Signal
from accordion.compressors import COMPRESSORS, ladder_of, load_function
from accordion.config import Config, DetectorConfig, Window
from accordion.decide.controller import Controller
from tests.unit.accordion.compressor_laws import LAWS, sent_and_owed_add_up
from tests.unit.accordion.lockstep import (
    FEEDBACK_METHODS,
    LEVELS,
    LOSSLESS_LEVELS,
    METHODS,
    SHAPES,
    WORLD_SIZES,
    Cluster,
    closeness,
    draw_gradients,
    mean_of,
)

LIGHT = settings(max_examples=40, deadline=None)
LEVELS_OF_ANY_SIZE = [level for level in LEVELS if "fp16" not in level.options.values()]
any_level = st.sampled_from(LEVELS)
seeds = st.integers(0, 2**31)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@given(shape=SHAPES, world_size=WORLD_SIZES, level=any_level, seed=seeds)
@LIGHT
def test_every_level_keeps_the_law(law, shape, world_size, level, seed):
    law(level, shape=shape, world_size=world_size, seed=seed)


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
@given(shape=SHAPES, world_size=WORLD_SIZES, seed=seeds, rung=st.integers(0, 1))
@LIGHT
def test_what_is_sent_and_what_is_owed_add_up_to_the_gradient_and_the_old_debt(
    method, shape, world_size, seed, rung
):
    level = ladder_of(method)[rung]
    sent_and_owed_add_up(level, shape=shape, world_size=world_size, seed=seed)


@given(
    shape=SHAPES,
    world_size=WORLD_SIZES,
    levels=st.lists(st.sampled_from(LOSSLESS_LEVELS), min_size=1, max_size=6),
    seed=seeds,
)
@LIGHT
def test_nothing_is_lost_over_any_sequence_of_level_changes(shape, world_size, levels, seed):
    cluster = Cluster({"w": shape}, world_size)
    due, received = torch.zeros(shape), torch.zeros(shape)
    for step, level in enumerate(levels):
        gradients = draw_gradients({"w": shape}, world_size, seed + step)
        cluster.switch(level)
        received += cluster.step(gradients)[0]["w"]
        due += mean_of(gradients, "w")
    left = cluster.mean_residual("w", due)
    torch.testing.assert_close(
        received + left, due, rtol=0, atol=len(levels) * closeness(due, received, left)
    )


def _updates(level, factor):
    """Return the updates of three steps of two workers, up to one that is skipped."""
    cluster, updates = Cluster({"w": (30, 40)}, 2), []
    cluster.switch(level)
    for seed in range(3):
        gradients = draw_gradients({"w": (30, 40)}, 2, seed)
        update = cluster.exchange([{"w": factor * own["w"]} for own in gradients])[0]["w"]
        signals = [engine.own_signals(frozenset(), update.device) for engine in cluster.engines]
        if torch.stack(signals)[:, Signal.NOT_FINITE].any():
            break
        for engine in cluster.engines:
            engine.commit_step()
        updates.append(update)
    return updates


@pytest.mark.parametrize("power", [-100, -40, 40, 80, 117, 126])
@pytest.mark.parametrize("level", LEVELS_OF_ANY_SIZE, ids=lambda level: level.method + level.name)
def test_gradients_of_any_size_are_sent_alike_but_the_largest_are_skipped(level, power):
    updates = _updates(level, 2.0**power)
    assert len(updates) == 3 or power > 110
    for update, of_size_1 in zip(updates, _updates(level, 1.0), strict=False):
        assert torch.equal(update, 2.0**power * of_size_1)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
def test_no_global_random_state_is_touched(level):
    before = torch.get_rng_state()
    cluster = Cluster({"w": (64, 48)}, 2)
    cluster.switch(level)
    cluster.step(draw_gradients({"w": (64, 48)}, 2, 0))
    cluster.engines[0].sums.summary(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)


def _regimes(method: str, rung: str) -> list[object]:
    """Regimes by window when one stream of shrinking gradients is trained with this method."""
    shapes = {"a": (40, 30), "b": (30, 50)}
    cluster = Cluster(shapes, 2)
    config = Config(
        method=method, policy="fixed", policy_options={"level": rung}, detector=_EACH_EPOCH
    )
    layers = [LayerInfo(name=name, shape=shape) for name, shape in shapes.items()]
    controller, found = Controller(config, layers), []
    for epoch, scale in enumerate([1.0, 0.9, 0.3, 0.29, 0.28]):
        cluster.switch(controller.decision.level_by_layer["a"])
        for step in range(3):
            gradients = draw_gradients(shapes, 2, 10 * epoch + step)
            cluster.step([{name: g * scale for name, g in own.items()} for own in gradients])
        found.append(controller.decide(_report(cluster, epoch)).regime_by_layer)
    return found


_EACH_EPOCH = DetectorConfig(window=Window(epochs=1))


def _report(cluster: Cluster, epoch: int) -> Report:
    sketches = [engine.sums.summary(torch.device("cpu")) for engine in cluster.engines]
    statistic = estimate_norms(["a", "b"], torch.stack(sketches).mean(0))
    for engine in cluster.engines:
        engine.sums.clear()
    return Report(
        epoch=epoch,
        step=3 * epoch + 3,
        epoch_end=True,
        world_size=2,
        global_batch=8,
        lr=0.1,
        next_lr=0.1,
        window_steps=3,
        statistic_by_layer=statistic,
    )


def test_one_stream_of_gradients_gives_the_same_regimes_under_every_method_and_level():
    expected = _regimes("none", "low")
    assert [set(regimes.values()) for regimes in expected] == [
        {"critical"},
        {"stable"},
        {"critical"},
        {"stable"},
        {"stable"},
    ]
    for method in METHODS:
        for rung in ("low", "high"):
            assert _regimes(method, rung) == expected, (method, rung)


def test_every_row_says_what_it_is_and_names_a_flow_that_loads():

    for name, row in COMPRESSORS.items():
        assert row.summary, name
        assert callable(load_function(row.flow)), name
