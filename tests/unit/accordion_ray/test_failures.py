"""How a run's end is found out of what its ranks' training functions did; ranks as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from torch.distributed import HashStore

from accordion_ray import failures
from accordion_ray.failures import OutcomeStore, watch_end
from accordion_workers.records.contract import FailureRecord
from tests.unit.workers.world import until


class Ranks:
    """Training functions, one a rank, that end when the test says so."""

    def __init__(self, world_size: int) -> None:
        self.outcomes = OutcomeStore(HashStore(), "digits", world_size=world_size)
        self.ends: list[FailureRecord | None] = []
        self.own_ends: list[int] = []
        self._returns = [threading.Event() for _ in range(world_size)]
        self._threads = [
            threading.Thread(target=self._train, args=(rank,)) for rank in range(world_size)
        ]
        for thread in self._threads:
            thread.start()

    def end(self, rank: int) -> None:
        self._returns[rank].set()
        self._threads[rank].join()

    def close(self) -> None:
        for rank in range(len(self._threads)):
            self.end(rank)
        for thread in threading.enumerate():
            if thread.name == "accordion-end":
                thread.join()

    def _train(self, rank: int) -> None:
        watch_end(
            self.ends.append,
            rank=rank,
            outcomes=self.outcomes,
            on_own_end=lambda: self.own_ends.append(rank),
        )
        self._returns[rank].wait()


@pytest.fixture
def start(errors: list[BaseException | None]) -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []

    def start_ranks(world_size: int) -> Ranks:
        made.append(Ranks(world_size))
        return made[-1]

    yield start_ranks
    for ranks in made:
        ranks.close()


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What functions raise, in the order of their ends."""
    raised: list[BaseException | None] = []
    monkeypatch.setattr(failures, "read_training_error", lambda: raised.pop(0) if raised else None)
    return raised


def test_a_run_has_succeeded_when_all_ranks_have_returned(start, monkeypatch) -> None:
    polls: list[bool] = []
    have_all_returned = OutcomeStore.have_all_returned

    def poll(outcomes: OutcomeStore) -> bool:
        polls.append(have_all_returned(outcomes))
        return polls[-1]

    monkeypatch.setattr(OutcomeStore, "have_all_returned", poll)
    ranks = start(3)
    ranks.end(0)
    ranks.end(1)
    until(lambda: len(polls) > 3)
    assert ranks.ends == []
    ranks.end(2)
    until(lambda: ranks.ends == [None])


def test_a_rank_that_fails_after_rank_0_has_returned_fails_the_run(start, errors) -> None:
    ranks = start(2)
    errors += [None, ValueError("late")]
    ranks.end(0)
    until(lambda: len(errors) == 1)
    ranks.end(1)
    until(lambda: ranks.ends)
    [failure] = ranks.ends
    assert failure is not None
    assert failure.rank == 1


def test_a_failure_of_another_rank_reaches_rank_0_while_it_trains(start, errors) -> None:
    ranks = start(2)
    errors.append(ValueError("boom"))
    ranks.end(1)
    until(lambda: ranks.ends)
    [failure] = ranks.ends
    assert failure is not None
    assert (failure.cause, failure.rank) == ("job", 1)
    assert "ValueError: boom" in failure.message


def test_rank_0_tells_that_it_has_ended_before_it_waits_for_the_cause(
    start, errors, monkeypatch
) -> None:
    monkeypatch.setattr(failures, "PEER_FAILURE_WAIT_S", 60.0)
    ranks = start(2)
    errors += [
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
        ValueError("boom"),
    ]
    ranks.end(0)
    until(lambda: ranks.own_ends)
    assert (ranks.own_ends, ranks.ends) == ([0], [])
    ranks.end(1)
    until(lambda: ranks.ends)
    assert ranks.own_ends == [0]
