"""Workers that are simulated by threads of one process, of which one runs at a time.

A worker runs until it takes part in a collective; then the next one runs, and when all have arrived
they go on with the result. So the default generators and all other state of the process are as if
each worker were alone between two collectives, and a simulation repeats itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from accordion.base.errors import HookError
from accordion.base.link_model import WHOLE_BUCKET
from accordion.compress.exchange import GroupNetwork

JOIN_S = 0.2
"""Seconds between two looks of the main thread whether a signal has arrived."""
_T = TypeVar("_T")


class LockstepEndedError(HookError):
    """Another simulated worker raised an error or ended, so a collective cannot take place."""


class LockstepGroup:
    """Group of workers in the threads of `run`."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._turns = [threading.Semaphore(0) for _ in range(world_size)]
        """One permit for the worker that runs."""
        self._given: dict[int, Any] = {}
        """What the workers gave that wait for a collective."""
        self._ended: set[int] = set()
        self._result: Any = None
        self._is_broken = False

    def run(self, work: Callable[[int], _T]) -> list[_T]:
        """Call `work` with each rank in a thread of its own; return the results by rank.

        Raises:
            BaseException: the first error of a worker; the others get a `LockstepEndedError` in
                their next collective.
        """
        results: dict[int, _T] = {}
        errors: list[BaseException] = []

        def run_rank(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                results[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001 -- `run` raises it
                self._is_broken = True
                errors.append(error)
            self._ended.add(rank)
            self._pass_turn(rank)

        threads = [
            threading.Thread(target=run_rank, args=(rank,), name=f"worker {rank}", daemon=True)
            for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            # A signal may reach another thread; this one handles it between two waits.
            while thread.is_alive():
                thread.join(JOIN_S)
        if errors:
            raise errors[0]
        return [results[rank] for rank in range(self.world_size)]

    def collect(self, rank: int, given: Any, combine: Callable[[Sequence[Any]], _T]) -> _T:
        """Wait until all workers gave something; return what `combine` makes of it, by rank.

        It is called once, and all workers get the same object.

        Raises:
            LockstepEndedError: a worker ended before.
        """
        self._given[rank] = given
        if len(self._given) == self.world_size:
            self._result = combine([self._given[one] for one in range(self.world_size)])
            self._given.clear()
            first = 0
        else:
            first = rank + 1
        if rank != first:
            self._pass_turn(rank, first=first)
            self._turns[rank].acquire()
        if self._is_broken:
            raise LockstepEndedError("another worker of this simulation has ended")
        result: _T = self._result
        return result

    def _pass_turn(self, rank: int, *, first: int | None = None) -> None:
        """Let the next worker run that does not wait, from `first` on; if there is none, those that
        wait learn that their collective cannot take place.
        """
        start = rank + 1 if first is None else first
        order = [(start + distance) % self.world_size for distance in range(self.world_size)]
        alive = [one for one in order if one not in self._ended]
        ready = [one for one in alive if one not in self._given]
        if not ready and alive:
            self._is_broken = True
            self._given.pop(alive[0])
            ready = alive[:1]
        if ready:
            self._turns[ready[0]].release()


class LockstepNetwork(GroupNetwork):
    """Network between simulated workers.

    Sums are added in rank order, as between processes on CPUs, so they have the same bits. Nothing
    takes time: what a worker waits for are the other ones' steps.
    """

    def __init__(self, group: LockstepGroup, rank: int, device: torch.device) -> None:
        super().__init__(None, device, clock=lambda: 0.0)
        self.group = group
        self.world_size, self.rank = group.world_size, rank

    def all_reduce_mean_(
        self, buffer: Tensor, name: str = WHOLE_BUCKET, *, next_values: int = 0
    ) -> None:
        """Replace a contiguous buffer by its mean over the workers."""
        del name, next_values
        buffer.mul_(1.0 / self.world_size)
        self.sum_(buffer)

    def sum_(self, buffer: Tensor) -> None:
        """Replace a buffer by its sum over the workers."""
        buffer.copy_(self.group.collect(self.rank, buffer, _sum_in_rank_order))

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace a tensor by that of rank 0, of equal size and dtype."""
        tensor.copy_(self.group.collect(self.rank, tensor, lambda given: given[0].clone()))

    def pass_to_next(self, payload: Tensor) -> float:
        """Return the seconds that a message takes: none."""
        del payload
        return 0.0

    def _all_gather(self, gathered: Tensor, row: Tensor, name: str) -> None:
        del name
        gathered.copy_(self.group.collect(self.rank, row, _stack))

    def _all_to_all(self, received: Tensor, parts: Tensor, name: str) -> None:
        del name
        received.copy_(self.group.collect(self.rank, parts, _stack)[:, self.rank])


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows))


def _sum_in_rank_order(buffers: Sequence[Tensor]) -> Tensor:
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total.add_(buffer)
    return total
