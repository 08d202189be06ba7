"""Simulated workers share objects as processes do: each has its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from accordion.compress.lockstep import LockstepGroup
from accordion_workers.simulation.simulated_peers import SimulatedPeers


def share(peers: SimulatedPeers) -> list[int]:
    return peers.share_object([peers.rank])


def gather(peers: SimulatedPeers) -> list[int]:
    return peers.gather_objects([peers.rank])[0]


@pytest.mark.parametrize("exchange", [share, gather])
def test_what_one_worker_does_to_a_shared_object_no_other_one_sees(
    exchange: Callable[[SimulatedPeers], list[int]],
) -> None:
    group, store = LockstepGroup(3), HashStore()

    def work(rank: int) -> list[int]:
        found = exchange(SimulatedPeers(group, rank, torch.device("cpu"), store=store))
        seen = list(found)
        found.append(rank)
        return seen

    assert group.run(work) == [[0], [0], [0]]


def test_what_a_worker_does_to_its_own_object_after_a_gathering_no_other_one_sees() -> None:
    group, store = LockstepGroup(3), HashStore()

    def work(rank: int) -> list[list[int]]:
        own = [rank]
        found = SimulatedPeers(group, rank, torch.device("cpu"), store=store).gather_objects(own)
        own.append(9)
        return found

    assert group.run(work) == [[[0], [1], [2]]] * 3


def test_a_signal_that_reaches_a_worker_is_handled_while_the_workers_run():
    heard = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())

    def work(rank: int) -> bool:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return heard.wait(timeout=60)

    try:
        assert LockstepGroup(1).run(work) == [True]
    finally:
        signal.signal(signal.SIGUSR1, before)
