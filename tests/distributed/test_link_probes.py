"""Messages between neighbors, which show whether one link is slower than the others."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.ledger import OVERHEAD
from accordion.config import Config
from accordion.session import coordination
from accordion.session.session import attach
from tests.distributed.compose import WAYS, trial

LATE_S = 0.05
LATE_RANK = 1


def _probed(rank, buckets_per_exchange):
    """Train for a step on a group in which one rank receives messages late, and close a window;
    what the step sends pays for any probe.
    """
    original = dist.recv

    def receive_late(*arguments, **keywords):
        source = original(*arguments, **keywords)
        is_large = arguments[0].numel() > 1
        time.sleep(LATE_S if rank == LATE_RANK and is_large else 0.0)
        return source

    with (
        patch.object(dist, "recv", receive_late),
        patch.object(coordination, "_MAX_MESSAGE_SHARE", 1e9),
    ):
        worker = trial(
            rank, WAYS["as usual"], "powersgd", buckets_per_exchange=buckets_per_exchange
        )
        worker.step(0)
        worker.session.end_epoch(lr=0.1, next_lr=0.1)
    messages = worker.session.ledger.by_collective[f"{OVERHEAD} message"]
    return worker.session.receive_s_by_rank, messages.payload


def _counted(rank, windows, message_bytes):
    """Return the wire bytes of messages between neighbors, and those of gradients, after so many
    windows of a step of a layer that compression makes a hundred times smaller.
    """
    ddp = DistributedDataParallel(torch.nn.Linear(256, 256, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with patch.object(coordination, "_MESSAGE_BYTES", message_bytes):
        session = attach(ddp, Config(method="powersgd", policy="fixed"), optimizer=optimizer)
        for _ in range(windows):
            ddp(torch.ones(1, 256)).sum().backward()
            session.step()
            session.end_epoch(lr=0.1, next_lr=0.1)
    ledger = session.ledger
    return ledger.by_collective[f"{OVERHEAD} message"].wire, ledger.gradient_wire


def test_a_small_run_is_not_probed(run_group):
    assert [sent for sent, _ in run_group(3, _counted, 2, 1 << 16)] == [0] * 3


def test_probes_take_a_few_percent_of_the_gradient_bytes_sent(run_group):
    for sent, gradients in run_group(3, _counted, 30, 64):
        assert 0 < sent <= 0.03 * gradients


def test_the_time_of_every_link_is_known_to_all_ranks_and_counted(run_group):
    (seconds, payload), *others = run_group(3, _probed, "auto")
    assert others == [(seconds, payload)] * 2
    assert len(seconds) == 3
    assert max(range(3), key=seconds.__getitem__) == LATE_RANK
    assert seconds[LATE_RANK] >= LATE_S / 2
    assert payload == 3 * (64 * 1024 + 1)


@pytest.mark.parametrize(
    ("workers", "buckets_per_exchange"), [(2, "auto"), (3, 1)], ids=["one link", "a fixed plan"]
)
def test_two_workers_and_fixed_plans_are_not_probed(run_group, workers, buckets_per_exchange):
    assert run_group(workers, _probed, buckets_per_exchange) == [((), 0)] * workers
