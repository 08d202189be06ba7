"""Overrides of local steps in mid-round and in the start: all workers change at the same step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Override
from tests.distributed.test_local_steps import WORKERS, MakeOptimizer, Worker, adam, sgd

Orders = Mapping[int, int | str | None]
"""Level that a user gives within the step of this number; None cancels it."""


def follow(rank: int, local: LocalSteps, orders: Orders, make: MakeOptimizer = sgd) -> Any:
    worker = Worker(rank, local, make)
    lengths, equal, switches = [], [], []
    for step in range(12):
        if rank == 0 and step in orders:
            level = orders[step]
            held = [] if level is None else [Override(id="o", target="local_steps", level=level)]
            worker.session.override(held)
        result = worker.step(step)
        lengths.append(worker.session.decision.local_steps)
        equal.append(worker.parameters())
        switches += [] if result.switch is None else [result.switch]
    return lengths, equal, switches


@pytest.mark.parametrize("workers", [2, 3])
def test_an_override_in_a_round_holds_from_the_end_of_that_round_on_all_ranks(run_group, workers):
    orders = {4: 2, 8: None}
    results = run_group(workers, follow, LocalSteps(low=3, high=6), orders)
    for lengths, _, switches in results:
        assert lengths == [3] * 5 + [2] * 4 + [3] * 3
        assert [switch.decision.override_ids for switch in switches] == [("o",), ()]
        for switch, step in zip(switches, (6, 10), strict=True):
            assert [(ack.rank, ack.step) for ack in switch.acks] == [
                (rank, step) for rank in range(workers)
            ]
            assert len({ack.digest for ack in switch.acks}) == 1
    ends = [2, 5, 7, 9]
    first, *others = [equal for _, equal, _ in results]
    for other in others:
        shared = [step for step in range(12) if torch.equal(first[step], other[step])]
        assert shared == ends


def test_an_override_begins_rounds_within_the_start_and_ends_them_again(run_group):
    local = LocalSteps(low=3, high=4, start_steps=9)
    results = run_group(WORKERS, follow, local, {1: "high", 5: None}, adam)
    for lengths, _, switches in results:
        assert lengths == [1] + [4] * 4 + [1] * 3 + [3] * 4
        reasons = [switch.decision.reason for switch in switches]
        assert reasons[-1] == "the start of 9 steps ends: rounds of 3 local steps"
    (_, one, _), (_, other, _) = results
    shared = [step for step in range(12) if torch.equal(one[step], other[step])]
    assert shared == [0, 1, 5, 6, 7, 8, 11]


def test_the_end_of_the_start_ends_a_round_of_an_override(run_group):
    local = LocalSteps(low=2, high=5, start_steps=4)
    for lengths, _, switches in run_group(WORKERS, follow, local, {0: 5}):
        assert lengths == [5] * 12
        assert [switch.decision.step for switch in switches] == [1, 4]
        assert switches[-1].decision.local_steps_override == "o"


def skip_on_one(rank: int) -> Any:
    """One worker skips a local step, and then gradients are exchanged in every step."""
    worker = Worker(rank, LocalSteps(low=2, high=2), adam)
    for step in range(6):
        if (rank, step) == (0, 3):
            worker.session.override([Override(id="o", target="local_steps", level=1)])
        worker.step(step, spoil=(rank, step) == (1, 1))
    counts = [float(one["step"]) for one in worker.optimizer.state.values()]
    return worker.session.decision.local_steps, counts, worker.parameters()


def test_after_rounds_a_worker_that_skipped_a_local_step_trains_as_the_others_do(run_group):
    (length, counts, one), (_, others_counts, other) = run_group(WORKERS, skip_on_one)
    assert length == 1
    assert counts == others_counts == [5.5] * 4
    assert torch.equal(one, other)
