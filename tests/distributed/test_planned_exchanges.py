"""Exchange plans of running sessions: rank 0 measures, all ranks follow, and no number changes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import patch

import pytest
import torch

from accordion.base.messages import Override, plan_digest
from accordion.compress.compression_engine import Engine
from accordion.compress.direct_collectives import DirectCollectives
from accordion.compressors import COMPRESSORS
from accordion.hook.exchange_planner import ExchangePlanner, Proposal
from tests.distributed.compose import WAYS, trial

LATE_S = 0.003
"""Seconds by which each sum over a slow link is delayed."""
MAX_STEPS = 150
METHODS = sorted(COMPRESSORS)
DEEP = WAYS["nine buckets"]
PLANTED_AT = 1
"""Step at whose end rank 0 proposes the planted plan."""


@contextmanager
def _late_link():
    original = DirectCollectives.all_reduce_

    def all_reduce_(*arguments, **keywords):
        time.sleep(LATE_S)
        original(*arguments, **keywords)

    with patch.object(DirectCollectives, "all_reduce_", all_reduce_):
        yield


@contextmanager
def _planted_plan(plan):
    """Rank 0 proposes this plan once, whatever it measures."""
    seen = 0

    def observe_step(planner, exchanges):
        nonlocal seen
        seen += 1
        return Proposal(plan=plan, reason="planted") if seen == PLANTED_AT + 1 else None

    with patch.object(ExchangePlanner, "observe_step", observe_step):
        yield


def _train(worker, steps):
    switches = []
    worker.session.on_boundary = lambda result: switches.append(result.switch)
    for step in steps:
        worker.step(step)
    return [switch for switch in switches if switch is not None]


def _until_planned(rank):
    worker = trial(rank, DEEP, "powersgd", buckets_per_exchange="auto")
    with _late_link():
        for step in range(MAX_STEPS):
            switches = _train(worker, [step])
            if switches:
                break
    return step + 1, switches, worker.parameters()


def _without_plan(rank, steps):
    worker = trial(rank, DEEP, "powersgd", buckets_per_exchange=1)
    _train(worker, range(steps))
    return worker.parameters()


def test_a_late_link_joins_buckets_on_all_ranks_and_changes_no_bit(run_group):
    found = run_group(2, _until_planned)
    assert [len(switches) for _, switches, _ in found] == [1, 1], "no plan was proposed"
    (steps, (switch,), _), (other_steps, (other_switch,), _) = found
    decision = switch.decision
    assert (steps, decision) == (other_steps, other_switch.decision)
    assert decision.cause == "link"
    assert len(decision.exchange_plan) < sum(decision.exchange_plan)
    assert f"instead of {sum(decision.exchange_plan)}: predicted" in decision.reason
    digest = plan_digest(decision.level_by_layer, None, decision.exchange_plan)
    assert [ack.digest for ack in switch.acks] == [digest] * 2
    expected = run_group(2, _without_plan, steps)
    for (_, _, parameters), others in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(parameters, others, strict=True))


@contextmanager
def _counted_exchanges():
    """Number of buckets of each exchange."""
    sizes = []
    original = Engine.exchange

    def exchange(engine, buckets, *arguments, **keywords):
        sizes.append(len(buckets))
        return original(engine, buckets, *arguments, **keywords)

    with patch.object(Engine, "exchange", exchange):
        yield sizes


def _with_plan(rank, plan, method, override):
    worker = trial(rank, DEEP, method, rung="low", buckets_per_exchange="auto")
    with _planted_plan(plan):
        switches = _train(worker, range(PLANTED_AT + 1))
        if override and rank == 0:
            worker.session.override([Override(id="o1", level={"method": "none"})])
        switches += _train(worker, range(PLANTED_AT + 1, PLANTED_AT + 2))
        with _counted_exchanges() as exchanges:
            switches += _train(worker, range(PLANTED_AT + 2, PLANTED_AT + 5))
    return exchanges, switches, worker.parameters(), worker.session.ledger.total


@pytest.mark.parametrize(
    ("method", "workers"), [(method, 2 + place % 2) for place, method in enumerate(METHODS)]
)
def test_a_plan_groups_the_buckets_and_keeps_every_bit_on_all_ranks(run_group, method, workers):
    plan = (1, 3, 1, 4)
    found = run_group(workers, _with_plan, plan, method, False)
    (_, _, expected, _), *_ = run_group(workers, _with_plan, (1,) * 9, method, False)
    for exchanges, (switch,), parameters, total in found:
        assert exchanges == list(plan) * 3
        assert switch.decision.exchange_plan == plan
        assert (switch, total) == (found[0][1][0], found[0][3])
        assert all(torch.equal(one, other) for one, other in zip(expected, parameters, strict=True))


def test_an_override_and_a_plan_of_the_same_step_are_one_decision(run_group):
    for _, (switch,), _, _ in run_group(2, _with_plan, (1, 8), "powersgd", True):
        assert switch.decision.cause == "override"
        assert switch.decision.exchange_plan == (1, 8)
        assert set(switch.decision.override_by_layer.values()) == {"o1"}


@pytest.mark.parametrize("plan", [(2,), (5, 90)], ids=["too short", "too long"])
def test_a_plan_of_another_model_exchanges_every_bucket_all_the_same(run_group, plan):
    found = run_group(2, _with_plan, plan, "powersgd", False)
    alone = run_group(2, _with_plan, (1,) * 9, "powersgd", False)
    for (exchanges, _, parameters, _), (_, _, others, _) in zip(found, alone, strict=True):
        assert sum(exchanges) == 3 * 9
        assert all(torch.equal(one, other) for one, other in zip(parameters, others, strict=True))


def _same_in_every_way(rank, way):
    found = []
    for buckets_per_exchange in ("auto", 1):
        worker = trial(rank, WAYS[way], "powersgd", buckets_per_exchange=buckets_per_exchange)
        with _planted_plan((1, 2, 3)):
            switches = _train(worker, range(PLANTED_AT + 4))
        found.append(worker.parameters())
    return len(switches), all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_change_of_plan_keeps_every_bit_in_every_way_of_training(run_group, way):
    assert run_group(2, _same_in_every_way, way) == [(0, True)] * 2


def _saved_and_loaded(rank, buckets_per_exchange):
    worker = trial(rank, DEEP, "powersgd", buckets_per_exchange="auto")
    with _planted_plan((1, 8)):
        _train(worker, range(PLANTED_AT + 3))
    state = worker.session.state_dict()
    again = trial(rank, DEEP, "powersgd", buckets_per_exchange=buckets_per_exchange)
    again.session.load_state_dict(state)
    kept = again.session.decision.exchange_plan
    again.session.end_epoch(lr=0.1, next_lr=0.1)
    return (
        kept,
        again.session.source.exchanges.exchange_plan,
        asdict(again.session.decision)["exchange_plan"],
    )


def test_a_plan_is_saved_with_the_state_and_kept_by_later_decisions(run_group):
    assert run_group(2, _saved_and_loaded, "auto") == [((1, 8),) * 3] * 2
    assert run_group(2, _saved_and_loaded, 1) == [((),) * 3] * 2


def _never_planned(rank, way, settings, overlap):
    with _planted_plan((1,)):
        worker = trial(rank, way, "powersgd", overlap=overlap, **settings)
        return _train(worker, range(PLANTED_AT + 3)), worker.session.source.exchanges.can_plan


@pytest.mark.parametrize(
    ("workers", "settings", "overlap"),
    [(1, {"buckets_per_exchange": "auto"}, True), (2, {"buckets_per_exchange": "auto"}, False)],
    ids=["one worker", "inside the backward pass"],
)
def test_without_peers_or_overlap_there_is_no_plan(run_group, workers, settings, overlap):
    found = run_group(workers, _never_planned, WAYS["as usual"], settings, overlap)
    assert found == [([], False)] * workers


def _exchanges_inside(rank):
    worker = trial(rank, DEEP, "powersgd", buckets_per_exchange="auto", overlap=False)
    with _counted_exchanges() as exchanges:
        _train(worker, range(2))
    return exchanges


def test_without_overlap_all_buckets_share_one_exchange(run_group):
    assert run_group(2, _exchanges_inside) == [[9, 9]] * 2
