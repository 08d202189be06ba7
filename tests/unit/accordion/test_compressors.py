"""What single methods promise beyond the laws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.base.wire import Mean
from accordion.compress.compression_engine import STACKED_BELOW
from accordion.compress.exchange import are_piggybacked
from accordion.compress.layer_stacks import Layer
from accordion.compress.ledger import ByteCount
from accordion.compress.statistics import seeded_generator
from accordion.compressors import level_of
from accordion.compressors.linalg import orthonormalize_
from accordion.compressors.powersgd import warm_factors
from tests.unit.accordion.lockstep import (
    Cluster,
    draw_gradients,
    mean_of,
    rank_level,
    run_flows_lockstep,
)


def test_powersgd_is_exact_for_a_gradient_of_its_rank_after_two_steps():
    draw = torch.Generator().manual_seed(1)
    low_rank = torch.randn(20, 2, generator=draw) @ torch.randn(2, 30, generator=draw)
    cluster = Cluster({"w": (20, 30)}, 2)
    cluster.switch(rank_level(2))
    cluster.step([{"w": low_rank}, {"w": low_rank}])
    update = cluster.step([{"w": low_rank}, {"w": low_rank}])[0]["w"]
    torch.testing.assert_close(update, low_rank, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factors", ["both", "alternating"])
def test_refreshed_factors_give_the_best_approximation_of_their_rank(factors):
    gradients = draw_gradients({"w": (20, 30)}, 2, seed=3)
    mean = mean_of(gradients, "w")
    cluster = Cluster({"w": (20, 30)}, 2)
    options = {"rank": 3, "factors": factors, "refresh_every": 5}
    cluster.switch(level_of("powersgd", options, name="high"))
    refreshed = cluster.step(gradients)[0]["w"]
    torch.testing.assert_close(refreshed, mean, rtol=0, atol=1e-6)
    left, values, right = torch.linalg.svd(mean, full_matrices=False)
    best = (left[:, :3] * values[:3]) @ right[:3]
    torch.testing.assert_close(cluster.step(gradients)[0]["w"], best, rtol=1e-4, atol=1e-4)


def test_factors_are_refreshed_in_the_steps_that_the_option_names():
    cluster = Cluster({"w": (20, 30)}, 2)
    cluster.switch(level_of("powersgd", {"rank": 3, "refresh_every": 2}, name="high"))
    updates = [
        cluster.step(draw_gradients({"w": (20, 30)}, 2, seed=seed))[0]["w"] for seed in range(4)
    ]
    assert [int(torch.linalg.matrix_rank(update, rtol=1e-4)) for update in updates] == [
        20,
        3,
        20,
        3,
    ]


def test_a_gradient_that_is_not_finite_refreshes_factors_without_an_error():
    cluster = Cluster({"w": (20, 30)}, 2)
    cluster.switch(level_of("powersgd", {"refresh_every": 1}, name="high"))
    update = cluster.exchange([{"w": torch.full((20, 30), torch.nan)} for _ in range(2)])
    assert update[0]["w"].isnan().all()


@pytest.mark.parametrize("factors", ["both", "alternating"])
def test_a_residual_does_not_grow_by_what_differs_between_workers(factors):
    cluster = Cluster({"w": (8, 12)}, 2)
    cluster.switch(level_of("powersgd", {"rank": 2, "factors": factors}, name="high"))
    alike, unlike = (own["w"] for own in draw_gradients({"w": (8, 12)}, 2, seed=0))
    for _ in range(100):
        cluster.step([{"w": alike + unlike}, {"w": alike - unlike}])
    for engine in cluster.engines:
        # Each of the 8 rows' directions is sent at least once in a dozen steps.
        assert engine.feedback.get("w").norm() < 12 * unlike.norm()


@pytest.mark.parametrize("rank", [1, 2, 3, 6])
def test_powersgd_sends_the_two_factors_and_nothing_else(rank):
    payload = 4 * rank * (20 + 30)
    assert _count_requests(rank) == ByteCount(payload=payload, wire=2 * payload * 3 // 4)


def _count_requests(rank: int) -> ByteCount:
    """Book what one worker's flow asks for, as the hook does."""
    from accordion.base.messages import LayerInfo
    from accordion.compress.compression_engine import Engine
    from accordion.compress.layer_stacks import Layer
    from tests.unit.accordion.lockstep import answer_lockstep

    engine = Engine([LayerInfo(name="w", shape=(20, 30))], seed=0, world_size=4)
    engine.plan = {"w": rank_level(rank)}
    (stack,) = engine.build_stacks([Layer(name="w", gradient=torch.randn(20, 30))])
    request = stack.flow.send(None)
    while request is not None:
        engine.ledger.count(("w",), request, "powersgd")
        request = stack.flow.send(answer_lockstep([{0: request}])[0][0])
    return engine.ledger.total


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 4)])
def test_powersgd_sends_a_layer_whole_when_its_factors_would_be_no_smaller(shape):
    cluster = Cluster({"w": shape}, 2)
    cluster.switch(rank_level(4))
    gradients = draw_gradients({"w": shape}, 2, 0)
    torch.testing.assert_close(cluster.step(gradients)[0]["w"], mean_of(gradients, "w"))


@pytest.mark.parametrize(("factors", "width"), [("both", 8), ("alternating", 8 + 9)])
def test_the_warm_start_keeps_the_rows_it_can_over_a_change_of_rank(factors, width):
    four = warm_factors(
        None, (9, 8), {"rank": 4, "factors": factors}, draw=seeded_generator(0, "x")
    )
    one = warm_factors(four, (9, 8), {"rank": 1, "factors": factors}, draw=seeded_generator(0, "x"))
    three = warm_factors(
        one, (9, 8), {"rank": 3, "factors": factors}, draw=seeded_generator(1, "y")
    )
    assert torch.equal(one, four[:1])
    assert torch.equal(three[:1], one)
    assert three.shape == (3, width)
    assert three[1:].abs().amax(1).min() > 0


@given(columns=st.integers(1, 6), batch=st.integers(1, 3), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_orthogonal_columns_are_orthonormal(columns, batch, seed):
    p = torch.randn(batch, 12, columns, generator=torch.Generator().manual_seed(seed))
    orthonormalize_(p)
    eye = torch.eye(columns).expand(batch, -1, -1)
    torch.testing.assert_close(
        p.mT @ p, eye, rtol=0, atol=1e-4
    )  # Gram-Schmidt in fp32 on well-conditioned columns


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_orthogonalisation_of_zero_and_repeated_columns_gives_no_nan(columns):
    p = torch.zeros(2, 8, columns)
    p[1] = torch.arange(8.0).view(8, 1)
    orthonormalize_(p)
    assert torch.isfinite(p).all()
    assert torch.linalg.vector_norm(p[1, :, 0]).item() == pytest.approx(1.0, abs=1e-5)


def test_half_in_bf16_sends_values_beyond_the_range_of_fp16():
    cluster = Cluster({"w": (2, 2)}, 2)
    cluster.switch(level_of("half", {"dtype": "bf16"}, name="h"))
    update = cluster.step([{"w": torch.full((2, 2), 3e38)}, {"w": torch.full((2, 2), 1.0)}])[0]["w"]
    torch.testing.assert_close(update, torch.full((2, 2), 1.5e38), rtol=0.01, atol=0)


def test_small_gradients_survive_loss_scaling_in_16_bits():
    cluster = Cluster({"w": (8, 8)}, 1)
    cluster.switch(level_of("half", {}, name="low"))
    cluster.engines[0].loss_scale = 65536.0
    scaled = torch.full((8, 8), 2e-8) * 65536.0
    torch.testing.assert_close(cluster.step([{"w": scaled}])[0]["w"], scaled, rtol=1e-3, atol=0)


def test_stacks_of_a_former_bucket_layout_are_forgotten():
    cluster = Cluster({"a": (8, 8), "b": (8, 8)}, 1)
    cluster.switch(level_of("powersgd", {}, name="low"))
    engine, ones = cluster.engines[0], torch.ones(8, 8)
    cluster.step([{"a": ones, "b": ones}])
    assert len(engine._buffers) == 1
    for name in ("a", "b"):
        layers = [Layer(name=name, gradient=ones.clone())]
        engine.observe_gradients(layers)
        stacks = engine.build_stacks(layers)
        run_flows_lockstep([[stack.flow for stack in stacks]])
        engine.hold_updates(stacks)
        engine.write_updates(is_skipped=torch.tensor(False))
    engine.commit_step()
    assert len(engine._buffers) == 2


@pytest.mark.parametrize(("values", "flows"), [(STACKED_BELOW - 8, 1), (STACKED_BELOW, 2)])
def test_small_layers_of_equal_shape_share_a_flow_and_large_ones_do_not(values, flows):
    shape = (8, values // 8)
    cluster = Cluster({"a": shape, "b": shape}, 1)
    cluster.switch(level_of("powersgd", {}, name="low"))
    layers = [Layer(name=name, gradient=torch.ones(shape)) for name in ("a", "b")]
    assert len(cluster.engines[0].build_stacks(layers)) == flows


@pytest.mark.parametrize(
    ("world_size", "size", "piggybacked"),
    [
        (2, 1 << 21, True),
        (2, (1 << 21) + 8, False),
        (3, 24_576, True),
        (3, 24_584, False),
        (4, 10_928, False),
    ],
)
def test_small_means_are_piggybacked_on_a_gather(world_size, size, piggybacked):
    means = [Mean(torch.zeros(4)), Mean(torch.zeros(size // 4 - 4))]
    assert are_piggybacked(means, world_size=world_size) is piggybacked
