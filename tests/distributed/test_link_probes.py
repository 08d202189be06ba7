"""Messages between neighbors, which show whether one link is slower than the others."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
import torch.distributed as dist

from accordion.ledger import OVERHEAD
from tests.distributed.compose import WAYS, trial

LATE_S = 0.05
LATE_RANK = 1


def _probed(rank, buckets_per_exchange):
    """Train for a step on a group in which one rank receives messages late, and close a window."""
    original = dist.recv

    def receive_late(*arguments, **keywords):
        source = original(*arguments, **keywords)
        is_large = arguments[0].numel() > 1
        time.sleep(LATE_S if rank == LATE_RANK and is_large else 0.0)
        return source

    with patch.object(dist, "recv", receive_late):
        worker = trial(
            rank, WAYS["as usual"], "powersgd", buckets_per_exchange=buckets_per_exchange
        )
        worker.step(0)
        worker.session.end_epoch(lr=0.1, next_lr=0.1)
    messages = worker.session.ledger.by_collective[f"{OVERHEAD} message"]
    return worker.session.receive_s_by_rank, messages.payload


def test_the_time_of_every_link_is_known_to_all_ranks_and_counted(run_group):
    (seconds, payload), *others = run_group(3, _probed, "auto")
    assert others == [(seconds, payload)] * 2
    assert len(seconds) == 3
    assert max(range(3), key=seconds.__getitem__) == LATE_RANK
    assert seconds[LATE_RANK] >= LATE_S / 2
    assert payload == 2 * 3 * (64 * 1024 + 1)


@pytest.mark.parametrize(
    ("workers", "buckets_per_exchange"), [(2, "auto"), (3, 1)], ids=["one link", "a fixed plan"]
)
def test_two_workers_and_fixed_plans_are_not_probed(run_group, workers, buckets_per_exchange):
    assert run_group(workers, _probed, buckets_per_exchange) == [((), 0)] * workers
