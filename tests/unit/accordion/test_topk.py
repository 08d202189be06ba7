"""Top-k: exactly k entries travel, and they are the largest, however they are found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from accordion.base.wire import Gather, Scratch
from accordion.compress.statistics import seeded_generator
from accordion.compressors import level_of
from accordion.compressors.stratified_sampling import draw_positions
from tests.unit.accordion.lockstep import Cluster
from tests.unit.accordion.one_flow import Alone, assert_keeps_its_memory

SAMPLED = 300_001
"""Entries of a layer whose threshold is sampled: more than one span of marks, and no multiple of
eight.
"""


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _spikes() -> Tensor:
    """All that is large lies side by side."""
    values = _normal(SAMPLED)
    values[1000:3000] *= 100
    return values


LAYERS = {
    "normal": _normal(SAMPLED),
    "normal, 64 bits": _normal(SAMPLED).double(),
    "heavy tails": _normal(SAMPLED) ** 9,
    "spikes": _spikes(),
    "sorted": _normal(SAMPLED).sort().values,
    "all equal": torch.full((SAMPLED,), -0.5),
    "all zero": torch.zeros(SAMPLED),
    "few distinct values": _normal(SAMPLED).round(),
    "ties among the candidates": (20 * _normal(SAMPLED)).round(),
    "fewer that are not zero than are sent": torch.where(
        torch.arange(SAMPLED) % 1000 == 7, 1.0, 0.0
    ),
    "tiny": _normal(SAMPLED) * 1e-30,
}


def _sent(alone: Alone, layers: int) -> Tensor:
    """Positions by layer in the stack, as they travelled with 32-bit values."""
    (request,) = alone.requests
    assert isinstance(request, Gather)
    positions = request.payload[: request.payload.numel() // 2].view(torch.int32)
    return positions.view(layers, -1).long()


@pytest.mark.parametrize("density", [1e-6, 0.001, 0.01, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_large_layer_sends_exactly_k_and_none_smaller_than_one_it_keeps(kind, density):
    before = LAYERS[kind].unsqueeze(0)
    alone, owed = Alone("topk", {"density": density}), before.clone()
    update = alone.send(owed)
    places = _sent(alone, 1)[0]
    assert places.unique().numel() == places.numel() == max(1, round(density * SAMPLED))
    sent = torch.zeros(SAMPLED, dtype=torch.bool).index_fill_(0, places, True)
    least = before[0, sent].abs().min()
    assert sent.all() or least >= before[0, ~sent].abs().max()
    torch.testing.assert_close(
        update, before * sent, rtol=1e-6, atol=0
    )  # 64-bit values travel in 32 bits
    assert torch.equal(update + owed, before)


@given(
    size=st.integers(1, 400),
    density=st.sampled_from([1e-6, 0.01, 0.3, 1.0]),
    values=st.sampled_from(["fp32", "fp16"]),
    select=st.sampled_from(["sampled", "exact"]),
)
@settings(max_examples=40, deadline=None)
def test_a_small_layer_sends_exactly_k_of_the_largest_entries(size, density, values, select):
    gradient = torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    cluster = Cluster({"w": (1, size)}, 1)
    cluster.switch(
        level_of("topk", {"density": density, "values": values, "select": select}, name="t")
    )
    update = cluster.step([{"w": gradient}])[0]["w"]
    largest = gradient.abs().view(-1).topk(max(1, round(density * size))).indices.sort().values
    assert torch.equal(update.view(-1).nonzero().view(-1), largest)


@pytest.mark.parametrize("density", [0.001, 0.03, 0.4])
def test_both_ways_to_select_send_the_same(density):
    updates = [
        Alone("topk", {"density": density, "select": select}).send(_normal(2, SAMPLED))
        for select in ("sampled", "exact")
    ]
    assert torch.equal(*updates)


@pytest.mark.parametrize("misled", ["too high", "too low"])
def test_a_sample_that_misleads_changes_nothing(misled):
    size, count = 100_000, 20_000
    sampled = draw_positions(
        (1, size, size // 8), Alone.draw(5)("own"), Scratch(torch.device("cpu"))
    )
    before = _normal(size)
    if misled == "too high":
        before[sampled] *= 1000.0
    else:  # only zeros are seen, and more than are sent are not zero
        unseen = (
            torch.ones(size, dtype=torch.bool).index_fill_(0, sampled, False).nonzero().view(-1)
        )
        before[torch.cat([sampled, unseen[30_000:]])] = 0.0
    alone = Alone("topk", {"density": count / size})
    alone.send(before.clone().unsqueeze(0), seed=5)
    largest = before.abs().topk(count).indices
    assert torch.equal(_sent(alone, 1)[0].sort().values, largest.sort().values)


@pytest.mark.parametrize("size", [50, SAMPLED])
@pytest.mark.parametrize("select", ["sampled", "exact"])
def test_each_layer_of_a_stack_sends_its_own_largest(size, select):
    before = _normal(3, size) * torch.tensor([[1.0], [100.0], [0.01]])
    alone = Alone("topk", {"density": 0.02, "select": select})
    alone.send(before.clone())
    for row, places in enumerate(_sent(alone, 3)):
        largest = before[row].abs().topk(round(0.02 * size)).indices
        assert torch.equal(places.sort().values - row * size, largest.sort().values)


@pytest.mark.parametrize("size", [40, SAMPLED])
@pytest.mark.parametrize("bad", [1, 8, 0.2])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_go_first_and_leave_the_count_as_it_is(size, bad, value):
    owed, count = _normal(1, size), round(0.05 * size)
    places = torch.randperm(size, generator=seeded_generator(1, "places"))[
        : bad if bad >= 1 else round(bad * size)
    ]
    owed[0, places] = value
    alone = Alone("topk", {"density": 0.05})
    alone.send(owed, seed=5)  # a single one is not in the sample of the large layer
    sent = _sent(alone, 1)[0]
    assert sent.unique().numel() == count
    assert torch.isin(sent, places).sum() == min(count, places.numel())


@pytest.mark.parametrize(("values", "bytes_each"), [("fp32", 8), ("fp16", 6)])
def test_an_entry_costs_its_value_and_a_position_of_32_bits(values, bytes_each):
    alone = Alone("topk", {"density": 0.01, "values": values})
    alone.send(_normal(2, 5000))
    (request,) = alone.requests
    assert request.payload.numel() == bytes_each * 2 * 50
    assert request.equal


@pytest.mark.parametrize("size", [3, SAMPLED])
def test_the_rounding_of_16_bit_values_stays_owed(size):
    before = 1.0 + _normal(1, size).abs() / 7
    alone, owed = Alone("topk", {"density": 1.0, "values": "fp16"}), before.clone()
    update = alone.send(owed)
    assert not torch.equal(update, before)
    assert torch.equal(update + owed, before)


def test_what_16_bits_cannot_hold_is_sent_as_their_largest_and_stays_owed():
    owed = torch.tensor([[1e6, 2.0]])
    update = Alone("topk", {"density": 1.0, "values": "fp16"}).send(owed)
    assert update.tolist() == [[65504.0, 2.0]]
    assert owed.tolist() == [[1e6 - 65504.0, 0.0]]


def test_workers_that_send_the_same_entry_get_its_mean():
    gradients = [{"w": torch.tensor([[8.0, 1.0, 0.0]])}, {"w": torch.tensor([[4.0, 0.0, 2.0]])}]
    cluster = Cluster({"w": (1, 3)}, 2)
    cluster.switch(level_of("topk", {"density": 0.34}, name="t"))
    assert cluster.step(gradients)[0]["w"].tolist() == [[6.0, 0.0, 0.0]]


@pytest.mark.parametrize("shape", [(1, 0), (3, 0)])
def test_a_layer_without_entries_asks_for_nothing(shape):
    alone = Alone("topk", {})
    assert alone.send(torch.empty(shape)).shape == shape
    assert alone.requests == []


@pytest.mark.parametrize("values", ["fp32", "fp16"])
@pytest.mark.parametrize("density", [0.01, 0.1])
def test_no_step_after_the_first_allocates_beyond_64_kilobytes(density, values):
    owed = _normal(1, 1_000_000)
    assert_keeps_its_memory(
        Alone("topk", {"density": density, "values": values}), owed, owed.roll(1), owed.roll(3) ** 3
    )
