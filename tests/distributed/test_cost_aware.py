"""The policy `cost_aware` in running sessions, with a link or encoders that are planted slow."""

from __future__ import annotations

import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from accordion.compress.compression_engine import Engine
from accordion.compress.direct_collectives import DirectCollectives
from accordion.compress.exchange import GroupNetwork
from accordion.compress.ledger import Ledger
from accordion.hook.exchange_planner import SETTLING_STEPS, WINDOW_STEPS
from accordion.hook.worker_networks import WorkerNetworks
from accordion.session.coordination import Coordinator
from tests.distributed.compose import Way, trial

STEPS = SETTLING_STEPS + WINDOW_STEPS + 2
WAY = Way(ddp={"bucket_cap_mb": 0.02})


@contextmanager
def _slow_link():
    """Each byte takes a microsecond."""
    original = DirectCollectives.all_reduce_

    def all_reduce_(collectives, buffer, name, **keywords):
        time.sleep(1e-6 * buffer.nbytes)
        original(collectives, buffer, name, **keywords)

    with patch.object(DirectCollectives, "all_reduce_", all_reduce_):
        yield


@contextmanager
def _slow_encoders(bucket_s=0.02):
    """Whatever is not sent as it is takes longer by bucket."""
    original = Engine.build_stacks

    def build_stacks(engine, layers):
        time.sleep(bucket_s)
        return original(engine, layers)

    with patch.object(Engine, "build_stacks", build_stacks):
        yield


SLOW = {"link": _slow_link, "encoders": _slow_encoders}


def _train(rank, slow):
    with SLOW[slow]():
        worker = trial(rank, WAY, "powersgd", policy="cost_aware", buckets_per_exchange="auto")
        for step in range(STEPS):
            worker.step(step)
        switch = worker.session.end_epoch(lr=0.1, next_lr=0.1)
        for step in range(STEPS, STEPS + 2):
            worker.step(step)
    return switch.decision, switch.acks, worker.parameters()


@pytest.mark.parametrize(("slow", "allowed"), [("link", {"low", "high"}), ("encoders", {"none"})])
def test_the_choice_follows_what_is_slow_and_gives_the_figures(run_group, slow, allowed):
    first, *others = run_group(2, _train, slow)
    decision, acks, parameters = first
    assert {level.name for level in decision.level_by_layer.values()} <= allowed
    assert "a step waits for its exchanges" in decision.reason
    assert "per message" in decision.reason
    assert len({ack.digest for ack in acks}) == 1
    for other_decision, _, other_parameters in others:
        assert other_decision == decision
        assert all(torch.equal(a, b) for a, b in zip(parameters, other_parameters, strict=True))


def _compute(seconds):
    """Keep the processor busy: after a sleep, encoding would take longer."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.ones(1000).sum()


def _train_where_none_takes_longer(rank):
    """Return the decisions after the first level, and after `none`, whose steps take 0.2 s longer
    outside their exchanges.
    """
    worker = trial(rank, WAY, "powersgd", policy="cost_aware", buckets_per_exchange="auto")
    decisions = []
    with _slow_encoders(0.002):
        for first in (0, STEPS):
            for step in range(first, first + STEPS):
                _compute(0.2 if decisions else 0.0)
                worker.step(step)
            decisions.append(worker.session.end_epoch(lr=0.1, next_lr=0.1).decision)
    return decisions


def test_a_level_whose_whole_steps_take_longer_is_left_again(run_group):
    chosen, left = run_group(2, _train_where_none_takes_longer)[0]
    assert {level.name for level in chosen.level_by_layer.values()} == {"none"}
    assert {level.name for level in left.level_by_layer.values()} != {"none"}
    assert "none slowed the rest of the step down by" in left.reason


def _probe(rank, seconds_per_byte):
    """Return two probes of a link whose time is counted and not slept, and their sizes."""
    now = 0.0

    def clock():
        return now

    original = DirectCollectives.all_reduce_

    def all_reduce_(collectives, buffer, name, **keywords):
        nonlocal now
        # Rank 1's clock differs: the ranks must still send the same sizes.
        now += seconds_per_byte * buffer.nbytes * (1 + rank)
        sizes.append(buffer.nbytes)
        original(collectives, buffer, name, **keywords)

    network = GroupNetwork(dist.group.WORLD, torch.device("cpu"), clock)
    ledger, sizes = Ledger(2), []
    coordinator = Coordinator(
        WorkerNetworks(replicas=network, everyone=network), ledger, torch.device("cpu")
    )
    with patch.object(DirectCollectives, "all_reduce_", all_reduce_):
        timings = [coordinator.probe_bandwidth(waited_s, 1 << 26) for waited_s in (0.0, 1e9)]
    assert ledger.total.payload == sum(sizes) > 0, "a probe is overhead like any other message"
    return timings, sizes


def test_a_probe_grows_until_it_shows_the_bandwidth_and_keeps_its_size(run_group):
    (timings, sizes), (others, other_sizes) = run_group(2, _probe, 1e-8)
    assert other_sizes == sizes
    assert others == [None, None]
    for timing in timings:
        assert timing.seconds == pytest.approx(1e-8 * timing.payload)
        assert 0.0075 <= timing.seconds < 0.05


def test_a_probe_of_a_fast_link_ends_at_its_largest_size(run_group):
    for _, sizes in run_group(2, _probe, 0.0):
        assert max(sizes) == 1 << 24


def _without_peers(rank):
    worker = trial(rank, WAY, "powersgd", policy="cost_aware", buckets_per_exchange="auto")
    worker.step(0)
    return worker.session.end_epoch(lr=0.1, next_lr=0.1).decision


def test_without_peers_levels_follow_the_regimes(run_group):
    decision = run_group(1, _without_peers)[0]
    assert "no costs are measured yet" in decision.reason
    assert {level.name for level in decision.level_by_layer.values()} == {"low"}
