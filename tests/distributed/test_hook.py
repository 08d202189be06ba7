"""The hook on real gloo processes: the laws that need a process group."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from accordion.base.errors import HookError
from accordion.base.messages import Override
from accordion.compress.compression_engine import Engine
from accordion.compress.step_signals import Signal
from accordion.compressors import COMPRESSORS
from accordion.config import Config
from accordion.session.session import attach
from tests.distributed import small

METHODS = sorted(COMPRESSORS)


def _plain(rank, steps, average=True):
    ddp, optimizer = small.build()
    gradients = []
    for step in range(steps):
        small.backward(ddp, rank, step)
        gradients.append([parameter.grad.clone() for parameter in ddp.parameters()])
        optimizer.step()
        ddp.zero_grad()
    return small.parameters(ddp), gradients


def _none(rank, steps):
    ddp, session = small.start("none")
    gradients = []
    for step in range(steps):
        small.backward(ddp, rank, step)
        gradients.append([parameter.grad.clone() for parameter in ddp.parameters()])
        session.step()
        ddp.zero_grad()
    return small.parameters(ddp), gradients


@pytest.mark.parametrize("world_size", [1, 2])
def test_method_none_equals_plain_ddp_bit_for_bit_at_one_and_two_workers(run_group, world_size):
    plain = run_group(world_size, _plain, 6)
    ours = run_group(world_size, _none, 6)
    for (expected, _), (found, _) in zip(plain, ours, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_method_none_equals_plain_ddp_within_the_order_of_addition_at_three_workers(run_group):
    plain, ours = run_group(3, _plain, 1)[0][1][0], run_group(3, _none, 1)[0][1][0]
    for expected, found in zip(plain, ours, strict=True):
        # W ulp of the sum of magnitudes, here taken as at most three times the largest mean
        limit = 9 * torch.finfo(torch.float32).eps * expected.abs().max()
        torch.testing.assert_close(found, expected, rtol=0, atol=limit.item())


def _many_buckets(rank, method, cap):
    ddp, session = small.start(method, bucket_cap_mb=cap, window=1)
    buckets = []
    inner = Engine.observe_gradients

    def observe(engine, layers):
        buckets.append(session.steps)
        return inner(engine, layers)

    with patch.object(Engine, "observe_gradients", observe):
        for epoch in range(3):
            small.train(session, ddp, rank, range(2 * epoch, 2 * epoch + 2))
            session.end_epoch(lr=0.1, next_lr=0.1)
    return (
        small.parameters(ddp),
        max(buckets.count(step) for step in set(buckets)),
        session.decision,
    )


@pytest.mark.parametrize(
    ("method", "world_size"), [(method, 2 + place % 2) for place, method in enumerate(METHODS)]
)
def test_every_method_trains_with_many_buckets_and_all_ranks_agree(run_group, method, world_size):
    results = run_group(world_size, _many_buckets, method, 0.01)
    (expected, buckets, decision), *others = results
    assert buckets >= 4
    assert len({level.name for level in decision.level_by_layer.values()}) >= 1
    for found, _, other in others:
        assert other == decision
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def _levels_live(rank):
    ddp, session = small.start("powersgd")
    wishes = [
        1,
        {"method": "none"},
        "low",
        {"method": "topk", "density": 0.02},
        {"rank": 2},
        "high",
    ]
    digests = []
    for number, level in enumerate(wishes):
        if rank == 0:
            session.override([Override(id=f"o{number}", level=level, number=number)])
        results = []
        for step in (2 * number, 2 * number + 1):
            small.backward(ddp, rank, step)
            results.append(session.step())
            ddp.zero_grad()
        digests.append(
            [{ack.digest for ack in r.switch.acks} if r.switch else None for r in results]
        )
    return small.parameters(ddp), digests, session.decision.level_by_layer


def test_levels_change_live_up_down_and_to_none_at_the_same_step_on_every_rank(run_group):
    results = run_group(3, _levels_live)
    parameters, digests, levels = results[0]
    for found, other_digests, other_levels in results[1:]:
        assert other_digests == digests
        assert other_levels == levels
        assert all(torch.equal(a, b) for a, b in zip(parameters, found, strict=True))
    assert all(
        first is not None and len(first) == 1 and second is None for first, second in digests
    )
    assert len({min(first) for first, _ in digests}) == 5  # rung 1 and "high" are the same plan


def _bad_gradient(rank, method, layer, bad_rank):
    ddp, session = small.start(method, bucket_cap_mb=0.01)
    small.train(session, ddp, rank, range(3))
    before = [*small.parameters(ddp), *small.owed(session).values()]
    parameter = dict(ddp.module.named_parameters())[layer]
    handle = parameter.register_hook(
        lambda g: torch.full_like(g, float("nan")) if rank == bad_rank else g
    )
    small.backward(ddp, rank, 3)
    result = session.step()
    handle.remove()
    ddp.zero_grad()
    after = [*small.parameters(ddp), *small.owed(session).values()]
    small.train(session, ddp, rank, range(4, 6))
    return result.taken, session.skipped_steps, before, after, small.parameters(ddp)


@pytest.mark.parametrize(
    ("method", "layer"),
    [(method, ("last.weight", "conv.weight")[place % 2]) for place, method in enumerate(METHODS)],
)
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_everywhere(
    run_group, method, layer
):
    results = run_group(2, _bad_gradient, method, layer, 1)
    for taken, skipped, before, after, end in results:
        assert (taken, skipped) == (False, 1)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(torch.isfinite(parameter).all() for parameter in end)


def _announce(rank, word, from_rank):
    ddp, session = small.start("powersgd")
    small.train(session, ddp, rank, range(2))
    if rank == from_rank:
        session.request(word)
    seen = []
    for step in range(2, 4):
        small.backward(ddp, rank, step)
        seen.append(session.step().announced)
        ddp.zero_grad()
    return seen


@pytest.mark.parametrize("word", [Signal.SAVE_STOP, Signal.CHECKPOINT])
def test_a_word_raised_on_any_rank_is_seen_once_by_all_at_the_same_step(run_group, word):
    assert run_group(3, _announce, word, 2) == [[{word}, set()]] * 3


def _misuse(rank):
    ddp, session = small.start("powersgd")
    sentences = []
    for mistake in (
        session.step,
        lambda: [small.backward(ddp, rank, step) for step in range(2)],
        lambda: attach(ddp, Config(method="powersgd")),
    ):
        try:
            mistake()
        except (HookError, RuntimeError) as error:
            sentences.append(str(error))
    return sentences


def test_misuse_is_told_in_one_sentence_with_the_way_out(run_group):
    no_backward, twice, hooked = run_group(1, _misuse)[0]
    assert "call backward() outside no_sync() first" in no_backward
    assert "call session.step() after each backward()" in twice
    assert "attach() to a new DDP" in hooked


def _accumulate(rank, method, parts):
    ddp, session = small.start(method)
    for step in range(3):
        inputs, labels = small.batch(rank, step)
        pieces = list(zip(inputs.chunk(parts), labels.chunk(parts), strict=True))
        for place, (x, y) in enumerate(pieces):
            ddp.require_backward_grad_sync = place == parts - 1
            torch.nn.functional.cross_entropy(ddp(x), y).div(parts).backward()
        session.step()
        ddp.zero_grad()
    return small.parameters(ddp), session.ledger.total


def test_gradient_accumulation_sends_once_a_step_and_gives_the_same_mathematics(run_group):
    whole, pieces = run_group(2, _accumulate, "none", 1)[0], run_group(2, _accumulate, "none", 4)[0]
    assert whole[1] == pieces[1]
    for a, b in zip(whole[0], pieces[0], strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-4, atol=1e-6
        )  # fp32 sums of 8 samples in another order
