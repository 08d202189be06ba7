"""Exchanging beside the backward pass: the same bits, errors that arrive, and threads that end."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from accordion.base.errors import HookError
from accordion.compress.compression_engine import Engine
from accordion.compress.executors import ThreadExecutor
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import Config
from accordion.session.session import attach
from tests.distributed import small
from tests.distributed.compose import WAYS, Way, trial

METHODS = sorted(COMPRESSORS)
GIVE_UP = timedelta(seconds=10)
"""After this long a worker whose peer failed gives up, in the tests of failures."""


def _every_level(rank, overlap, buckets_per_exchange=1):
    """Both levels of every method in turn, several steps each, in one run."""
    way = Way(ddp={"bucket_cap_mb": 0.01})
    worker = trial(rank, way, "none", overlap=overlap, buckets_per_exchange=buckets_per_exchange)
    engine, step = worker.session._engine, 0
    ends = []
    for method in METHODS:
        for level in ladder_of(method):
            engine.plan = {layer.name: level for layer in worker.session.layers}
            for step in range(step, step + 2):  # noqa: B020
                worker.step(step)
            step += 1
            ends.append(worker.parameters())
    return ends, worker.owed(), worker.session.ledger.total


@pytest.fixture(scope="module")
def beside(run_group):
    """What groups of two and three workers end with that exchange each bucket beside the backward
    pass.
    """
    return {workers: run_group(workers, _every_level, True) for workers in (2, 3)}


@pytest.mark.parametrize("world_size", [2, 3])
def test_exchanges_beside_and_inside_the_backward_pass_give_the_same_bits(
    run_group, beside, world_size
):
    inside = run_group(world_size, _every_level, False)
    for (ends, owed, total), (other_ends, other_owed, other_total) in zip(
        beside[world_size], inside, strict=True
    ):
        for place, (one, other) in enumerate(zip(ends, other_ends, strict=True)):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), f"level {place}"
        assert total == other_total
        assert all(torch.equal(owed[name], other_owed[name]) for name in owed)


@pytest.mark.parametrize(
    ("workers", "buckets", "overlap"),
    [(2, 2, True), (2, 3, False), (2, "all", True), (3, 2, True), (3, "all", False)],
)
def test_buckets_that_share_an_exchange_get_the_same_bits_on_all_ranks(
    run_group, beside, workers, buckets, overlap
):
    shared = run_group(workers, _every_level, overlap, buckets)
    expected = beside[workers][0][0]
    for (_, owed, total), (ends, other_owed, other_total) in zip(
        beside[workers], shared, strict=True
    ):
        for place, (one, other) in enumerate(zip(expected, ends, strict=True)):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), f"level {place}"
        assert all(torch.equal(owed[name], other_owed[name]) for name in owed)
        assert total.payload == pytest.approx(other_total.payload, rel=0.01)
        assert other_total == shared[0][2]


def _used_maps(rank):
    """Whose bits of the used-map DDP sums while buckets are exchanged: layers differ by rank in
    every step.
    """
    worker = trial(rank, WAYS["layers unused on one rank"], "powersgd")
    for step in range(30):
        worker.step(step)
    return worker.parameters()


def test_ddps_map_of_used_parameters_does_not_mix_with_exchanges(run_group):
    first, *others = run_group(3, _used_maps)
    for found in others:
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


def _fail_on(rank, bad_rank, overlap):
    """What each rank's training script gets where one rank's exchange fails in its second step."""
    # a process loads a good deal with its first step, and nobody gives its peer up for that.
    trial(rank, WAYS["as usual"], "powersgd", overlap=overlap).step(0)
    group = dist.new_group(timeout=GIVE_UP)
    worker = trial(rank, Way(ddp={"process_group": group}), "powersgd", overlap=overlap)
    worker.step(0)
    sentences = []
    with _failing_exchanges() if rank == bad_rank else nullcontext():
        for step in (1, 2):
            try:
                worker.step(step)
            except Exception as error:  # noqa: BLE001
                sentences.append(f"{type(error).__name__}: {error}")
                worker.optimizer.zero_grad()
    return sentences


def _failing_exchanges():
    """No exchange of this process succeeds meanwhile."""
    return patch.object(Engine, "build_stacks", _raise)


def _raise(_, layers):
    raise ValueError(f"planted in {layers[0].name}")


@pytest.mark.parametrize("overlap", [True, False], ids=["beside", "inside"])
def test_an_exchange_that_fails_on_one_rank_raises_its_cause_and_ends_the_peer(run_group, overlap):
    peer, failing = run_group(2, _fail_on, 1, overlap)
    assert "planted in" in failing[0]
    assert peer
    assert "HookError" not in peer[0]


def _threads():
    return {thread for thread in threading.enumerate() if thread.name == "accordion-exchange"}


def _all_end(threads, patience=200):
    for _ in range(patience):
        gc.collect()
        alive = [thread for thread in threads if thread.is_alive()]
        if not alive:
            return True
        alive[0].join(0.02)
    return False


def _dropped(rank, in_a_cycle):
    before = _threads()
    worker = trial(rank, WAYS["as usual"], "powersgd")
    worker.step(0)
    own = _threads() - before
    if in_a_cycle:  # as of a trainer that holds both and decides for the session
        worker.session.trainer = worker
    del worker
    return len(own), _all_end(own)


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_the_thread_ends_when_the_module_and_the_session_are_dropped(run_group, in_a_cycle):
    assert run_group(2, _dropped, in_a_cycle) == [(1, True)] * 2


def _after_a_failure(rank):
    before = _threads()
    worker = trial(rank, WAYS["as usual"], "powersgd")
    try:
        with _failing_exchanges():
            worker.step(0)
    except Exception:  # noqa: BLE001
        own = _threads() - before
        del worker
    return len(own), _all_end(own)


def test_the_thread_ends_after_a_failure_too(run_group):
    assert run_group(1, _after_a_failure) == [(1, True)]


def test_exchanges_on_the_thread_keep_their_order_and_end_at_the_first_error():
    executor, seen = ThreadExecutor(torch.device("cpu")), []
    buffers = [torch.zeros(1) for _ in range(4)]

    def exchange(number):
        seen.append(number)
        if number == 2:
            raise HookError("planted")

    futures = [executor.create_future() for _ in buffers]
    for number, promise in enumerate(zip(futures, buffers, strict=True)):
        executor.submit(lambda number=number: exchange(number), [promise])
    assert [future.wait() is buffer for future, buffer in zip(futures, buffers, strict=True)] == [
        True
    ] * 4
    for sentence in ("^planted\n", "earlier exchange of gradients failed .HookError: planted"):
        with pytest.raises(HookError, match=sentence):
            executor.raise_failure()
    assert seen == [0, 1, 2]


def _compiled_outside(rank):
    ddp, optimizer = small.build()
    try:
        attach(torch.compile(ddp, backend="eager"), Config(), optimizer=optimizer)
    except HookError as error:
        return str(error)
    return "attached"


def test_attach_to_a_compiled_ddp_says_what_to_attach_to(run_group):
    assert "give it the DistributedDataParallel inside" in run_group(1, _compiled_outside)[0]
