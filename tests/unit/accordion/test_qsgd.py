"""What qsgd promises beyond the laws: unbiased, bounded by the norm, and as small as its
bits say.
"""

from __future__ import annotations

import math

import pytest
import torch

from accordion.base.wire import Context, Flow, Scatter, Scratch, padded_size
from accordion.compressors import level_of
from accordion.compressors.packing import block_size
from accordion.compressors.qsgd import qsgd_flow
from tests.unit.accordion.compressor_laws import LAWS
from tests.unit.accordion.lockstep import Cluster, draw_gradients, run_flows_lockstep
from tests.unit.accordion.one_flow import Alone, assert_keeps_its_memory

BLOCK = block_size(torch.device("cpu"))
scratches = [Scratch(torch.device("cpu")) for _ in range(16)]


def flow_of(
    owed_BL: torch.Tensor,
    *,
    step: int = 0,
    rank: int = 0,
    world_size: int = 1,
    bits: int = 8,
    bucket: int = 512,
) -> Flow:
    """A flow that changes `owed_BL` into the update."""

    def draw(whose: str) -> torch.Generator:
        assert whose == "own"
        return torch.Generator().manual_seed(10 * step + rank)

    options = {"bits": bits, "bucket": bucket}
    context = Context(
        options=options,
        update=owed_BL,
        scratch=scratches[rank],
        shared=scratches[rank],
        step=step,
        world_size=world_size,
        rank=rank,
        draw=draw,
    )
    return qsgd_flow(owed_BL, context)


def exchange(*given: torch.Tensor, **of_flow: int) -> torch.Tensor:
    """The update, the same on all workers."""
    stacks = [owed.clone() for owed in given]
    run_flows_lockstep(
        [
            [flow_of(stack, rank=rank, world_size=len(stacks), **of_flow)]
            for rank, stack in enumerate(stacks)
        ]
    )
    first, *others = (stack.view(torch.uint8) for stack in stacks)
    assert all(torch.equal(first, other) for other in others)
    return stacks[0]


def is_scattered(given_BL: torch.Tensor, world_size: int, bits: int) -> bool:
    return isinstance(next(flow_of(given_BL, world_size=world_size, bits=bits)), Scatter)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def steps_of(given_BL: torch.Tensor, *, bits: int, bucket: int = 512) -> torch.Tensor:
    """The distance of two codes, for every value, if nothing is scattered."""
    parts = given_BL.view(-1).split(bucket)
    norms = torch.cat([part.abs().amax().expand_as(part) for part in parts if part.numel()])
    return norms.view_as(given_BL) / (2 ** (bits - 1) - 1)


@pytest.mark.parametrize(("world_size", "length"), [(1, 1400), (2, 5000), (3, 1400)])
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_the_mean_over_many_steps_approaches_every_value(bits, world_size, length):
    given = [normal(1, length, seed=seed) for seed in range(world_size)]
    mean = sum(exchange(*given, step=step, bits=bits) for step in range(100)) / 100
    step = torch.stack([steps_of(own, bits=bits) for own in given]).amax(0)
    # A rounding has a deviation of half a step at most; five deviations for the worst value.
    bound = 5 * 0.5 * step / (100 * world_size) ** 0.5
    assert ((mean - sum(given) / world_size).abs() <= bound).all()


@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_a_mean_that_is_rounded_again_approaches_every_value_too(bits, world_size):
    given = [normal(1, 30_001, seed=seed) for seed in range(world_size)]
    assert is_scattered(given[0], world_size, bits)
    mean = sum(exchange(*given, step=step, bits=bits) for step in range(100)) / 100
    largest = max(own.abs().max() for own in given) / (2 ** (bits - 1) - 1)
    bound = 6 * 0.5 * largest * ((1 + 1 / world_size) / 100) ** 0.5
    assert ((mean - sum(given) / world_size).abs() <= bound).all()


def test_values_beyond_the_first_block_are_rounded_without_bias_too():
    given = normal(1, 2 * BLOCK + 77)
    mean = sum(exchange(given, step=step, bits=4) for step in range(50)) / 50
    # Six deviations of half a step, for a quarter of a million values; rounding to the nearest is
    # off by seven.
    assert ((mean - given).abs() <= 6 * 0.5 * steps_of(given, bits=4) / 50**0.5).all()


def test_workers_and_steps_round_independently():
    given = normal(1, 4000)
    alone = exchange(given, bits=4) - given
    later = exchange(given, bits=4, step=1) - given
    together = exchange(given, given, bits=4) - given
    assert (alone * later).mean().abs() < 0.1 * alone.square().mean()
    torch.testing.assert_close(
        together.square().mean(), alone.square().mean() / 2, rtol=0.15, atol=0
    )


def _errors(*given: torch.Tensor) -> tuple[float, float]:
    """Mean square error of the mean of these gradients, and of the last one alone."""
    mean = sum(given) / len(given)
    found = [
        (exchange(*given, bits=6) - mean).square().mean().item(),
        (exchange(given[-1], bits=6) - given[-1]).square().mean().item(),
    ]
    return found[0], found[1]


@pytest.mark.parametrize("world_size", [3, 4, 7])
def test_rounding_the_mean_again_doubles_the_variance_of_independent_gradients(world_size):
    together, alone = _errors(*(normal(1, 1 << 16, seed=seed) for seed in range(world_size)))
    assert together == pytest.approx(2 * alone / world_size, rel=0.1)


def test_rounding_the_mean_of_equal_gradients_again_is_as_bad_as_one_worker():
    # Means of W equal values of the same codes lie on W-ths of a step, so W is large.
    together, alone = _errors(*[normal(1, 1 << 15)] * 16)
    assert together == pytest.approx((1 + 1 / 16) * alone, rel=0.1)


def test_the_error_of_a_layers_sum_is_that_of_independent_roundings():
    """The mean square of a rounding's error is a sixth of a step squared where values lie anywhere
    between codes.
    """
    given = normal(1, 4 * BLOCK)
    errors = [(exchange(given, step=step, bits=6) - given).double().sum() for step in range(24)]
    independent = (steps_of(given, bits=6).double().square().sum() / 6).sqrt()
    # 24 squares of a normal number have a mean between 0.3 and 2.2 but for one seed in a thousand.
    assert 0.3 < torch.stack(errors).square().mean() / independent**2 < 2.2


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (1, 512), (1, 1030), (1, BLOCK + 515)])
def test_a_value_moves_by_less_than_a_step_and_zeros_and_the_largest_stay(bits, shape):
    given = normal(*shape)
    given[given.abs() < 0.2] = 0
    step = steps_of(given, bits=bits)
    update = exchange(given, bits=bits)
    largest = given.abs() == step * (2 ** (bits - 1) - 1)
    assert ((update - given).abs() <= step * (1 + 1e-5)).all()
    assert not update[given == 0].any()
    torch.testing.assert_close(update[largest], given[largest], rtol=1e-6, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_value_never_flows_over_whatever_the_noise_and_the_norm(sign):
    """A million buckets of one magnitude, so that every rounding of levels / norm meets the
    extremes of the noise.
    """
    given = sign * (1 + torch.rand(1, 8 << 17, generator=torch.Generator().manual_seed(3)))
    given = given.view(-1, 8)[:, :1].expand(-1, 8).reshape(1, -1).contiguous()
    torch.testing.assert_close(exchange(given, bits=8, bucket=8), given, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("bits", "code_bytes"), [(8, 2100), (4, 1052), (3, 789), (2, 526)])
def test_a_payload_holds_its_bits_and_one_float_a_bucket(bits, code_bytes):
    """2100 codes, filled up to 2104 where they are packed, in 5 buckets."""
    request = next(flow_of(normal(1, 2100), bits=bits))
    assert request.equal
    assert request.payload.numel() == padded_size(code_bytes + 4 * 5)


@pytest.mark.parametrize("bits", [8, 4, 3])
@pytest.mark.parametrize("world_size", [3, 4, 8])
@pytest.mark.parametrize("shape", [(64, 576), (131, 509)], ids=str)
def test_a_worker_sends_less_than_twice_its_codes_however_many_there_are(shape, world_size, bits):
    codes = next(flow_of(normal(1, math.prod(shape)), bits=bits)).payload.numel()
    cluster = Cluster({"w": shape}, world_size)
    cluster.switch(level_of("qsgd", {"bits": bits}, name="high"))
    cluster.step(draw_gradients({"w": shape}, world_size, 0))
    for engine in cluster.engines:
        wire = 2 * (world_size - 1) / world_size * codes
        assert engine.ledger.total.wire == pytest.approx(wire, rel=0.02)
        assert engine.ledger.total.payload == pytest.approx((1 + 1 / world_size) * codes, rel=0.02)


@pytest.mark.parametrize(("world_size", "values"), [(1, 1 << 20), (2, 1 << 20), (3, 5000), (8, 8)])
def test_what_scattering_would_hardly_save_is_gathered(world_size, values):
    assert not is_scattered(normal(1, values), world_size, 8)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("bits", [8, 3])
@pytest.mark.parametrize(("world_size", "shape"), [(3, (64, 262)), (4, (7, 9001)), (16, (5, 205))])
def test_scattered_layers_keep_the_laws(law, world_size, shape, bits):
    assert is_scattered(normal(1, math.prod(shape)), world_size, bits)
    level = level_of("qsgd", {"bits": bits}, name="high")
    law(level, shape=shape, world_size=world_size, seed=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_16_bits_are_rounded_once_more_at_the_end(dtype):
    shape, level = (300, 200), level_of("qsgd", {"bits": 4}, name="high")
    given = [{"w": own["w"].to(dtype)} for own in draw_gradients({"w": shape}, 3, 0)]
    found = []
    for gradients in (given, [{"w": own["w"].float()} for own in given]):
        cluster = Cluster({"w": shape}, 3)
        cluster.switch(level)
        found.append(cluster.step(gradients)[0]["w"])
    assert torch.equal(found[0], found[1].to(dtype))


@pytest.mark.parametrize("spoiled", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_on_one_worker_gives_all_the_same_bits(spoiled):
    given = [normal(1, 30_000, seed=seed) for seed in range(3)]
    assert is_scattered(given[0], 3, 4)
    given[1][0, 4000] = spoiled
    update = exchange(*given, bits=4)
    # Another bucket than the spoiled one is as good as ever.
    mean = sum(given) / 3
    step = torch.stack([steps_of(own, bits=4) for own in given]).amax(0)
    assert ((update - mean).abs() <= 2 * step * (1 + 1e-5))[0, :2048].all()


def test_a_bucket_does_not_see_the_norms_of_others():
    given = torch.cat([1e6 * normal(1, 512), normal(1, 512, seed=1)], 1)
    assert (exchange(given) - given)[:, 512:].abs().max() < 0.1


def test_smaller_buckets_and_more_bits_have_less_error():
    given = normal(1, 1 << 14)

    def error(**options: int) -> float:
        return (exchange(given, **options) - given).norm().item()

    assert error(bits=4, bucket=64) < error(bits=4, bucket=512) < error(bits=4, bucket=8192)
    assert error(bits=8) < error(bits=7) < error(bits=5) < error(bits=3) < error(bits=2)


@pytest.mark.parametrize("size", [1e-38, 1e-45, 1e30])
def test_very_small_and_large_values_stay_finite_and_in_bounds(size):
    given = torch.full((1, 20), size)
    update = exchange(given)
    assert torch.isfinite(update).all()
    assert (update.abs() <= max(size * 1.01, 2.0**-100)).all()


@pytest.mark.parametrize("workers", [2, 4])
def test_the_sum_of_large_values_of_several_workers_stays_finite(workers):
    given = torch.full((1, 20), 3e38)
    update = exchange(*[given] * workers)
    assert torch.allclose(update, given, rtol=0.02)


def decode(*payloads: torch.Tensor, length: int) -> torch.Tensor:
    """The update of a worker that gets these payloads."""
    stack = torch.zeros(1, length)
    flow = flow_of(stack, world_size=len(payloads))
    next(flow)
    with pytest.raises(StopIteration):
        flow.send(list(payloads))
    return stack


@pytest.mark.parametrize("length", [100, BLOCK // 2, BLOCK // 2 + 8])
def test_an_update_is_the_mean_of_what_each_payload_says(length):
    payloads = [
        next(flow_of(normal(1, length, seed=rank), rank=rank, world_size=2)).payload.clone()
        for rank in range(2)
    ]
    first, second = (decode(payload, payload, length=length) for payload in payloads)
    update = decode(*payloads, length=length)
    assert torch.allclose(update, (first + second) / 2, atol=1e-6)
    assert not torch.allclose(first, second)


def test_gradients_in_64_bits_are_off_by_less_than_a_step():
    given = normal(1, 1200).double() / 3
    update = exchange(given)
    assert update.dtype == torch.float64
    assert ((update - given).abs() <= steps_of(given, bits=8) * (1 + 1e-5)).all()


def test_a_layer_without_values_passes():
    assert exchange(torch.empty(1, 0)).shape == (1, 0)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("bits", [8, 4, 3])
def test_no_step_after_the_first_allocates_beyond_64_kilobytes(bits, world_size):
    alone = Alone("qsgd", {"bits": bits}, world_size=world_size)
    assert_keeps_its_memory(alone, normal(1, 3 * BLOCK))


@pytest.mark.parametrize("bits", [4, 8])
def test_values_far_below_a_step_are_rounded_without_bias(bits):
    given = torch.full((1, 512 * 16), 2.0**-18 / (2 ** (bits - 1) - 1))
    given[:, ::512] = 1.0  # a step is 1 / levels, the other values 2**-18 of it
    small = torch.arange(given.shape[1]) % 512 != 0
    mean = (
        sum(exchange(given, step=step, bits=bits)[0, small].mean().item() for step in range(1000))
        / 1000
    )
    # About 31 of 8 million values are rounded up: a standard error of about 20 %, with clumps.
    assert 0.3 < mean / given[0, 1].item() < 2.0
