"""How many collectives a step costs, and that the ledger's tables tell the same bytes."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import torch.distributed as dist

from accordion.base.messages import to_json
from accordion.base.wire import Gather, Mean, Scatter
from accordion.compress import exchange
from accordion.compress.direct_collectives import DirectCollectives
from accordion.compressors import COMPRESSORS, ladder_of
from tests.distributed import small
from tests.distributed.compose import Way, trial

METHODS = sorted(COMPRESSORS)


class _Counted:
    """Collectives made, and the rounds by kind and dtype that flows asked for."""

    def __init__(self, session):
        self.made, self.allowed = 0, 0
        self._network = session.source.exchanges.network
        self._answer = self._network.answer_requests
        self._network.answer_requests = self._asked
        self._network.on_collective = self._count

    def _count(self, _):
        self.made += 1

    def _asked(self, requests, round_number, on_request):
        asked = list(requests.values())
        scatters = any(isinstance(request, Scatter) for request in asked)
        gathers = [
            request
            for request in asked
            if isinstance(request, Gather) and not (scatters and request.equal)
        ]
        self.allowed += len(
            {request.buffer.dtype for request in asked if isinstance(request, Mean)}
        )
        self.allowed += scatters + bool(gathers) + any(not request.equal for request in gathers)
        return self._answer(requests, round_number, on_request)


def _counts(rank):
    """Counts by method and level: buckets, in-place reductions, collectives made and rounds asked
    for in one step.
    """
    found = {}
    for method in METHODS:
        for level in ladder_of(method):
            worker = trial(rank, Way(ddp={"bucket_cap_mb": 0.02}), method, rung=level.name)
            worker.step(0)
            worker.step(1)
            exchanges, buckets = worker.session.source.exchanges, []
            inner = exchanges._exchange
            exchanges._exchange = lambda *a, inner=inner, buckets=buckets, **k: (
                buckets.append(1),
                inner(*a, **k),
            )[1]
            in_place, dense = [], exchanges._engine._reduce_in_place
            exchanges._engine._reduce_in_place = lambda *a, dense=dense, in_place=in_place: (
                in_place.append(1),
                dense(*a),
            )[1]
            counted = _Counted(worker.session)
            worker.step(2)
            found[method, level.name] = (
                len(buckets),
                len(in_place),
                counted.made,
                counted.allowed,
            )
    return found


@pytest.fixture(scope="module", params=[2, 4])
def counts(run_group, request):
    return run_group(request.param, _counts)[0]


def test_a_step_costs_one_collective_a_kind_a_dtype_and_a_round(counts):
    for level, (buckets, in_place, made, allowed) in counts.items():
        assert buckets >= 3, level
        assert made <= in_place + allowed, level


def test_powersgd_costs_at_most_two_collectives_a_bucket(counts):
    for (method, rung), (buckets, _, made, _) in counts.items():
        if method == "powersgd":
            assert made <= 2 * buckets, rung


def _count_collectives(rank, method, way):
    """Return the number of collectives in one step."""
    worker = trial(rank, way, method)
    worker.step(0)
    worker.step(1)
    counted = _Counted(worker.session)
    worker.step(2)
    return counted.made


def test_buckets_that_share_an_exchange_share_its_collectives(run_group):
    alone, pairs, together = (
        run_group(
            2,
            _count_collectives,
            "powersgd",
            Way(ddp={"bucket_cap_mb": 0.02}, buckets_per_exchange=buckets),
        )[0]
        for buckets in (1, 2, "all")
    )
    assert together <= 2 < pairs < alone


def test_dense_gradients_of_a_small_model_share_the_collective_of_the_signals(run_group):
    one_bucket = Way(ddp={"bucket_cap_mb": 25})
    assert run_group(2, _count_collectives, "none", one_bucket) == [1, 1]


def _means(rank, dtype):
    """Return a mean of tiny values that is sent alone, and one that shares a gather."""
    network = exchange.GroupNetwork(dist.group.WORLD, torch.device("cpu"))
    draw = torch.Generator().manual_seed(rank)
    values = (torch.randn(4096, generator=draw) * 1e-6).to(dtype)
    gather = Gather(torch.zeros(8, dtype=torch.uint8), equal=True)
    return [
        network.answer_requests({0: Mean(values.clone()), **others}, 0, lambda *_: None)[0].clone()
        for others in ({}, {1: gather})
    ]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_mean_has_the_same_bits_alone_and_beside_a_gather(run_group, dtype, workers):
    for alone, beside in run_group(workers, _means, dtype):
        assert torch.equal(alone, beside)


def _ledger(rank):
    found = {}
    for method in METHODS:
        worker = trial(rank, Way(mixed=True), method)
        for step in range(2):
            worker.step(step)
        worker.session.end_epoch(lr=0.1, next_lr=0.1)
        ledger = worker.session.ledger
        found[method] = [
            [dataclasses.astuple(c) for c in table.values()]
            for table in (ledger.by_layer, ledger.by_collective)
        ]
        found[method].append(dataclasses.astuple(ledger.total))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_bytes_by_layer_and_by_collective_add_up_to_the_total(run_group, world_size):
    for found in run_group(world_size, _ledger):
        for method, (by_layer, by_collective, total) in found.items():
            assert [sum(column) for column in zip(*by_layer, strict=True)] == list(total), method
            assert [sum(column) for column in zip(*by_collective, strict=True)][:2] == list(total)[
                :2
            ], method
            assert all(count[2] == 2 * count[3] for count in by_layer), method


def _largest_gather(rank):
    """Return the bytes that this worker got in the largest all-gather of a decision, and those of
    the decision.
    """
    ddp, session = small.start("powersgd")
    small.train(session, ddp, rank, range(2))
    received = []
    with pytest.MonkeyPatch.context() as patch:
        gather = DirectCollectives.all_gather
        patch.setattr(
            DirectCollectives,
            "all_gather",
            lambda own, into, row: (received.append(into.nbytes), gather(own, into, row)),
        )
        before = session.ledger.total.wire
        switch = session.end_epoch(lr=0.1, next_lr=0.1)
    return (
        max(received),
        len(json.dumps(to_json(switch.decision))),
        session.ledger.total.wire - before,
        switch.decision,
    )


def test_a_decision_reaches_each_worker_once_however_many_there_are(run_group):
    found = run_group(4, _largest_gather)
    assert len({str(decision) for *_, decision in found}) == 1
    for largest, size, wire, _ in found:
        assert largest < size
        assert wire == found[0][2] >= size * 3 / 4
