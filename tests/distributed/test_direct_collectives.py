"""Sums and gathers over direct messages in real gloo groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from accordion.direct_collectives import DirectCollectives
from accordion.errors import HookError
from accordion.exchange import GroupNetwork, run_flows
from accordion.wire import Gather, Mean, Scratch

SIZES = [1, 2, 3, 5, 1000, 1 << 18]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
GIVE_UP = timedelta(seconds=20)


def _collectives(group=None) -> DirectCollectives:
    return DirectCollectives(group or dist.group.WORLD, Scratch(torch.device("cpu")))


def _values(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * size + rank)
    return torch.randn(size, generator=draw, dtype=torch.float64).to(dtype)


def _sum_all(rank):
    collectives, found = _collectives(), []
    for dtype in DTYPES:
        for size in SIZES:
            buffer = _values(rank, size, dtype)
            collectives.sum_(buffer, "sum")
            found.append(buffer)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_sum_has_the_bits_of_an_addition_in_rank_order_on_all_ranks(run_group, workers):
    expected = []
    for dtype in DTYPES:
        for size in SIZES:
            total, *others = (_values(rank, size, dtype) for rank in range(workers))
            for other in others:
                total = total + other
            expected.append(total)
    for found in run_group(workers, _sum_all):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), (one.dtype, len(one))


def _sum_apart_and_together(rank):
    collectives = _collectives()
    parts = [_values(rank, size, torch.float32) for size in SIZES]
    together = torch.cat(parts)
    collectives.sum_(together, "together")
    for part in parts:
        collectives.sum_(part, "apart")
    return torch.equal(together, torch.cat(parts))


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_shares_a_buffer_changes_no_bit_of_a_sum(run_group, workers):
    assert run_group(workers, _sum_apart_and_together) == [True] * workers


def _announced_sums(rank):
    """Return sums of which each knew the size of the next, or a part of it."""
    collectives, found = _collectives(), []
    for next_values in (5, 3, 0, 0):
        buffer = _values(rank, 5, torch.float32)
        collectives.sum_(buffer, "sum", next_values=next_values)
        found.append(buffer)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_an_announced_sum_has_the_same_bits_even_if_it_is_larger(run_group, workers):
    for found in run_group(workers, _announced_sums):
        assert all(torch.equal(one, found[-1]) for one in found)


def _smaller_than_announced(rank):
    collectives = _collectives()
    collectives.sum_(torch.ones(5), "sum", next_values=5)
    try:
        collectives.sum_(torch.ones(4), "sum")
    except HookError as error:
        return str(error)
    return "nothing was raised"


def test_a_sum_that_is_smaller_than_announced_names_both_sizes(run_group):
    for error in run_group(2, _smaller_than_announced):
        assert "a sum of 4 values" in error
        assert "where 5 of torch.float32 had been announced" in error


def _second_means(rank):
    """Return the second means of four flows in one exchange, two of which announce theirs."""
    network = GroupNetwork(dist.group.WORLD, torch.device("cpu"))

    def flow(index, dtype, **announced):
        yield Mean(torch.ones(3), **announced)
        if dtype is None:
            payloads = yield Gather(torch.tensor([rank], dtype=torch.uint8))
            return sum(int(payload) for payload in payloads)
        return (yield Mean(torch.full((4,), float(rank + index), dtype=dtype)))

    flows = [
        flow(0, torch.float16),
        flow(1, torch.float32),
        flow(2, torch.float32, next_values=4),
        flow(3, torch.float32, next_values=4),
        flow(4, None),
    ]
    return run_flows(flows, network, lambda *_: None)


@pytest.mark.parametrize("workers", [2, 3])
def test_announced_means_come_first_whatever_else_shares_their_round(run_group, workers):
    for *means, total in run_group(workers, _second_means):
        for index, mean in enumerate(means):
            assert mean.tolist() == pytest.approx([index + (workers - 1) / 2] * 4, rel=1e-3)
        assert total == sum(range(workers))


def _gather_all(rank):
    collectives, found = _collectives(), []
    for length in (0, 1, 7, 100_000):
        row = torch.full((length,), rank, dtype=torch.uint8)
        gathered = torch.full((dist.get_world_size(), length), 77, dtype=torch.uint8)
        collectives.gather_rows(gathered, row)
        found.append(gathered)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_gather_has_the_rows_of_all_workers_in_rank_order(run_group, workers):
    for found in run_group(workers, _gather_all):
        for gathered in found:
            ranks = torch.arange(workers, dtype=torch.uint8)
            assert torch.equal(gathered, ranks[:, None].expand_as(gathered))


def _lose_a_peer(rank, lost):
    """Return what a worker gets whose peer leaves the group instead of adding."""
    group = dist.new_group(timeout=GIVE_UP)
    collectives = _collectives(group)
    collectives.sum_(torch.ones(1000), "sum")
    if rank == lost:
        dist.destroy_process_group(group)
        return ""
    try:
        collectives.sum_(torch.ones(1000), "sum")
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(("workers", "lost"), [(2, 0), (2, 1), (3, 0), (3, 2)])
def test_a_peer_that_leaves_is_reported_by_gloo_on_all_others(run_group, workers, lost):
    found = run_group(workers, _lose_a_peer, lost)
    assert all("gloo/transport" in error for rank, error in enumerate(found) if rank != lost), found
