"""Sums and gathers over direct messages in real gloo groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from accordion.base.errors import HookError
from accordion.base.wire import Gather, Mean, Scatter, Scratch
from accordion.compress import exchange
from accordion.compress.direct_collectives import DirectCollectives
from accordion.compress.exchange import GroupNetwork, run_flows

LARGE = 600_001
"""Number of values of a sum in several pieces, also of four workers."""
SIZES = [1, 2, 3, 5, 1000, LARGE]
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
            collectives.all_reduce_(buffer, "sum")
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
    collectives.all_reduce_(together, "together")
    for part in parts:
        collectives.all_reduce_(part, "apart")
    return torch.equal(together, torch.cat(parts))


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_shares_a_buffer_changes_no_bit_of_a_sum(run_group, workers):
    assert run_group(workers, _sum_apart_and_together) == [True] * workers


def _sums_in_a_row(rank, size, all_next_values):
    collectives, found = _collectives(), []
    for place, next_values in enumerate(all_next_values):
        buffer = _values(rank, size + place, torch.float32)
        collectives.all_reduce_(buffer, "sum", next_values=next_values)
        found.append(buffer)
    return found


@pytest.mark.parametrize("size", [1000, LARGE])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_posted_sum_has_the_same_bits_even_if_it_is_larger(run_group, workers, size):
    rows = [size + 1, size + 2, 3, size + 4, 7, 7, 0, 0]
    posted = run_group(workers, _sums_in_a_row, size, rows)
    plain = run_group(workers, _sums_in_a_row, size, [0] * len(rows))
    for found, expected in zip(posted, plain, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def _smaller_than_said(rank):
    collectives = _collectives()
    collectives.all_reduce_(torch.ones(5), "sum", next_values=5)
    try:
        collectives.all_reduce_(torch.ones(4), "sum")
    except HookError as error:
        return str(error)
    return "nothing was raised"


def test_a_mean_that_is_smaller_than_said_before_names_both_sizes(run_group):
    for error in run_group(2, _smaller_than_said):
        assert "a mean of 4 values" in error
        assert "next_values=5 of torch.float32" in error


def _fail_between_rounds(rank):
    network = GroupNetwork(dist.group.WORLD, torch.device("cpu"))

    def flow(fails):
        mean = yield Mean(torch.ones(4), next_values=4)
        if fails:
            raise ValueError("planted")
        yield Mean(mean)

    found = []
    for fails in (True, False):
        try:
            run_flows([flow(fails)], network, lambda *_: None)
        except (HookError, ValueError) as error:
            found.append(str(error))
    return found


def test_after_an_exchange_that_failed_between_its_rounds_none_begins(run_group):
    for first, second in run_group(2, _fail_between_rounds):
        assert first == "planted"
        assert "failed between its rounds" in second


def _second_means(rank):
    """Return the second answers of five flows in one exchange, two of which say theirs before."""
    network = GroupNetwork(dist.group.WORLD, torch.device("cpu"))

    def flow(index, dtype, **said):
        yield Mean(torch.ones(3), **said)
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
def test_posted_means_come_first_whatever_else_shares_their_round(run_group, workers):
    for *means, total in run_group(workers, _second_means):
        for index, mean in enumerate(means):
            assert mean.tolist() == pytest.approx([index + (workers - 1) / 2] * 4, rel=1e-3)
        assert total == sum(range(workers))


def _gather_all(rank):
    collectives, found = _collectives(), []
    for length in (0, 1, 7, 100_000):
        row = torch.full((length,), rank, dtype=torch.uint8)
        gathered = torch.full((dist.get_world_size(), length), 77, dtype=torch.uint8)
        collectives.all_gather(gathered, row)
        found.append(gathered)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_gather_has_the_rows_of_all_workers_in_rank_order(run_group, workers):
    for found in run_group(workers, _gather_all):
        for gathered in found:
            ranks = torch.arange(workers, dtype=torch.uint8)
            assert torch.equal(gathered, ranks[:, None].expand_as(gathered))


def _scatter_all(rank):
    collectives, workers, found = _collectives(), dist.get_world_size(), []
    for length in (0, 1, 7, 100_000):
        parts = [torch.full((length,), 10 * rank + to, dtype=torch.uint8) for to in range(workers)]
        received = torch.full((workers, length), 77, dtype=torch.uint8)
        collectives.all_to_all(received, parts)
        found.append(received)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_scatter_has_the_parts_for_this_worker_in_rank_order(run_group, workers):
    for rank, found in enumerate(run_group(workers, _scatter_all)):
        for received in found:
            expected = torch.arange(rank, 10 * workers, 10, dtype=torch.uint8)
            assert torch.equal(received, expected[:, None].expand_as(received))


def _bytes(*values):
    return torch.tensor(values, dtype=torch.uint8)


def _mixed_round(rank, has_direct):
    """Return the answers to requests of all kinds in one round, and the collectives made."""
    made, workers = [], dist.get_world_size()
    with pytest.MonkeyPatch.context() as patch:
        if not has_direct:
            patch.setattr(exchange, "backend_name", lambda *_: "another")
        network = GroupNetwork(dist.group.WORLD, torch.device("cpu"))
    network.on_collective = lambda timing: made.append((timing.kind, timing.name, timing.payload))
    requests = {
        0: Gather(_bytes(rank, 1), equal=True),
        1: Scatter([_bytes(rank, to, 9) for to in range(workers)]),
        2: Mean(torch.full((2,), float(rank))),
        3: Gather(_bytes(*[rank] * (1 + rank))),
        4: Scatter([_bytes(*[to] * 12) for to in range(workers)]),
    }
    answers = network.answer_requests(requests, 0, lambda *_: None)
    return {
        index: answer.tolist() if index == 2 else [part.tolist() for part in answer]
        for index, answer in answers.items()
    }, made


@pytest.mark.parametrize("has_direct", [True, False], ids=["direct", "of gloo"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_what_has_a_known_size_shares_the_collective_of_scatters(run_group, workers, has_direct):
    for rank, (answers, made) in enumerate(run_group(workers, _mixed_round, has_direct)):
        ranks = range(workers)
        assert answers == {
            0: [[other, 1] for other in ranks],
            1: [[other, rank, 9] for other in ranks],
            2: [(workers - 1) / 2] * 2,
            3: [[other] * (1 + other) for other in ranks],
            4: [[rank] * 12 for _ in ranks],
        }
        (kind, name, payload), *gathers = made
        assert (kind, name, payload) == ("all-to-all", "scatter 0", workers * (8 + 16 + 8 + 8))
        assert [kind for kind, *_ in gathers] == ["all-gather"] * 2, "sizes, then payloads"


def _lose_a_peer(rank, lost, size):
    """Return what a worker gets whose peer leaves the group instead of adding."""
    group = dist.new_group(timeout=GIVE_UP)
    collectives = _collectives(group)
    collectives.all_reduce_(torch.ones(size), "sum")
    if rank == lost:
        dist.destroy_process_group(group)
        return ""
    try:
        collectives.all_reduce_(torch.ones(size), "sum")
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("workers", "lost", "size"),
    [(2, 0, 1000), (2, 1, 1000), (3, 0, 1000), (3, 2, 1000), (2, 1, LARGE), (3, 2, LARGE)],
)
def test_a_peer_that_leaves_is_reported_by_gloo_on_all_others(run_group, workers, lost, size):
    found = run_group(workers, _lose_a_peer, lost, size)
    assert all("gloo/transport" in error for rank, error in enumerate(found) if rank != lost), found
