"""Random-k: all workers send the same entries without saying which, and every entry has its
turn.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.base.wire import Mean, Scratch
from accordion.compress.statistics import seeded_generator
from accordion.compressors import level_of
from accordion.compressors.stratified_sampling import draw_positions, hash_uniform_
from tests.unit.accordion.lockstep import Cluster, draw_gradients, mean_of
from tests.unit.accordion.one_flow import Alone, assert_keeps_its_memory

SCRATCH = Scratch(torch.device("cpu"))


@given(
    layers=st.integers(1, 4),
    length=st.integers(1, 300),
    part=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_positions_are_distinct_and_each_layer_has_its_own_k(layers, length, part, seed):
    count = max(1, round(part * length))
    positions = draw_positions((layers, length, count), seeded_generator(seed, "x"), SCRATCH).view(
        layers, count
    )
    for row, own in enumerate(positions):
        assert own.unique().numel() == count
        assert own.min() >= row * length
        assert own.max() < (row + 1) * length


@pytest.mark.parametrize(("length", "count"), [(7, 3), (11, 8), (10, 1), (12, 4)])
def test_every_position_is_drawn_equally_often(length, count):
    draws, draw = 4000, torch.Generator().manual_seed(1)
    hits = torch.zeros(length)
    for _ in range(draws):
        hits[draw_positions((1, length, count), draw, SCRATCH)] += 1
    expected = count / length
    deviation = (expected * (1 - expected) / draws) ** 0.5
    assert ((hits / draws - expected).abs() < 5 * deviation).all()


def test_two_positions_lie_at_any_distance_from_each_other():
    draw = torch.Generator().manual_seed(1)
    pairs = [draw_positions((1, 10, 2), draw, SCRATCH).tolist() for _ in range(400)]
    assert {(second - first) % 10 for first, second in pairs} == set(range(1, 10))


def test_positions_of_a_large_layer_are_drawn_from_all_of_it():
    length, count = 25_600_000, 256_000
    positions = draw_positions(
        (1, length, count), seeded_generator(0, "x"), Scratch(torch.device("cpu"))
    )
    assert positions.unique().numel() == count
    by_hundredth = torch.histc(positions.double(), 100, 0, length)
    # one in each stratum of 100 entries; the turn moves at most one over each border
    assert (by_hundredth - count / 100).abs().max() <= 1


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_workers_average_the_same_entries_anew_each_step(world_size):
    cluster = Cluster({"w": (30, 20)}, world_size)
    cluster.switch(level_of("randomk", {"density": 0.1}, name="r"))
    drawn = []
    for step in range(2):
        gradients = draw_gradients({"w": (30, 20)}, world_size, step)
        owed = cluster.mean_residual("w", gradients[0]["w"])
        update = cluster.step(gradients)[0]["w"]
        drawn.append(update != 0)
        assert drawn[-1].sum() == 60
        # sums of a few workers in another order
        torch.testing.assert_close(
            update, (mean_of(gradients, "w") + owed) * drawn[-1], rtol=1e-5, atol=1e-6
        )
    assert not torch.equal(*drawn)


def test_only_the_values_travel_and_they_are_averaged_by_the_network():
    alone = Alone("randomk", {"density": 0.01})
    alone.send(torch.ones(2, 5000))
    (request,) = alone.requests
    assert isinstance(request, Mean)
    assert request.buffer.shape == (100,)
    assert request.buffer.dtype == torch.float32


def test_what_is_sent_is_no_longer_owed_and_the_rest_is_owed_bit_for_bit():
    before = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    owed = before.clone()
    update = Alone("randomk", {"density": 0.3}).send(owed)
    assert torch.equal(torch.where(update != 0, update, owed), before)
    assert torch.equal(owed[update != 0], torch.zeros(900))


def test_every_entry_arrives_in_the_end():
    cluster = Cluster({"w": (4, 5)}, 2)
    cluster.switch(level_of("randomk", {"density": 0.3}, name="r"))
    gradients = draw_gradients({"w": (4, 5)}, 2, 0)
    received = cluster.step(gradients)[0]["w"]
    for _ in range(60):  # an entry misses all of them with a probability of 0.7 ** 61, below 1e-9
        received += cluster.step([{"w": torch.zeros(4, 5)} for _ in range(2)])[0]["w"]
    torch.testing.assert_close(received, mean_of(gradients, "w"))


def test_a_layer_without_entries_asks_for_nothing():
    alone = Alone("randomk", {})
    assert alone.send(torch.empty(2, 0)).shape == (2, 0)
    assert alone.requests == []


def test_no_step_after_the_first_allocates_beyond_64_kilobytes():
    assert_keeps_its_memory(Alone("randomk", {"density": 0.1}), torch.ones(1, 1_000_000))


def test_the_numbers_of_other_devices_are_those_of_splitmix64():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the seed 0
    values = torch.empty(3, dtype=torch.float64)
    hash_uniform_(values, 0x9E3779B97F4A7C15 - (1 << 64))
    assert values.tolist() == [(word >> 11) / 2**53 for word in published]
