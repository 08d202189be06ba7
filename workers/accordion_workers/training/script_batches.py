"""Batches of a user's script: which samples of each global batch this rank reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accordion_workers.common.errors import CodeError
from accordion_workers.training.sampler import (
    batch_at,
    epoch_order,
    even_counts,
    micro_batches,
    num_batches,
    rank_shard,
)
from accordion_workers.training.train_state import TrainState

if TYPE_CHECKING:
    from accordion_workers.training.script_session import ScriptSession


class Batches:
    """A `batch_sampler`: this rank's part of each global batch of the rest of the epoch, as
    indices.

    Which worker reads which sample depends on seed, epoch and position only (`sampler.py`). A rank
    without samples in the last batch of an epoch gets one sample with weight 0, because its peers
    need its backward pass.

    Raises:
        CodeError: there are no samples.
    """

    def __init__(self, session: ScriptSession, num_samples: int) -> None:
        if num_samples < 1:
            raise CodeError(
                f"session.batches({num_samples}) has no samples to read; check the paths and"
                " patterns by which the script finds its data"
            )
        self.num_samples = num_samples
        self.ahead: deque[tuple[range, int]] = deque()
        """Batches that were read but not trained on yet, each with the number of this rank's own
        samples in it.
        """
        self._session = session
        self._trained_epoch: int | None = None
        """Epoch of the batch that was last trained on."""

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return num_batches(self.num_samples, self._session.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the rest of the epoch; a script that is to stop ends where it asks for more.

        Raises:
            CodeError: the script has trained on all of the epoch's batches and did not end the
                epoch.
        """
        return _BatchReader(self._session, self._rest_of_epoch())

    def _rest_of_epoch(self) -> Iterator[list[int]]:
        state = self._session.state
        training, context = state.spec.training, state.context
        self._check_epoch_ended(state)
        order = epoch_order(self.num_samples, seed=training.seed, epoch=state.position.epoch)
        done = state.position.samples
        self.ahead.clear()
        while done < self.num_samples:
            batch = batch_at(
                done, num_samples=self.num_samples, global_batch=state.session.global_batch
            )
            pieces = micro_batches(batch, training.micro_batch)
            # Even whatever the speed: a forward pass takes all of them at once.
            shards = state.spec.num_shards
            counts = even_counts(len(pieces), context.world_size, shards=shards)
            mine = rank_shard(pieces, rank=context.rank, counts=counts)
            read = mine or pieces[:1]
            self.ahead.append((batch, sum(map(len, mine))))
            yield order[read[0].start : read[-1].stop].tolist()
            done = batch.stop

    def current(self) -> tuple[range, int]:
        """Return the batch that is trained on, and the number of this rank's samples in it.

        Raises:
            CodeError: the script did not read it from here.
        """
        if not self.ahead:
            raise CodeError(
                "session.backward(loss) was called without a batch of session.batches(); give the"
                " DataLoader batch_sampler=session.batches(len(data)), whose last call counts, so"
                " that evaluation needs another loader, or"
                " give session.attach(samples=len(data)) in place of session.batches()"
            )
        return self.ahead[0]

    def finish_current(self) -> None:
        """Go on to the next batch, because a step has trained on this one."""
        self.ahead.popleft()
        self._trained_epoch = self._session.state.position.epoch

    def _check_epoch_ended(self, state: TrainState) -> None:
        # A script that resumes at the end of an epoch finds no batch left, however often it reads.
        epoch = state.position.epoch
        if epoch == self._trained_epoch and state.position.samples >= self.num_samples:
            raise CodeError(
                f"session.batches() has no samples left in epoch {epoch}; call session.end_epoch()"
                " after each pass over them, or iterate over session.epochs(), and evaluate with"
                " another loader"
            )


def current_batch(state: TrainState, batches: Batches | None) -> tuple[range, int]:
    """Return the batch that is trained on, and the number of this rank's samples in it.

    Raises:
        CodeError: the script did not read it from its batches.
    """
    if batches is not None:
        return batches.current()
    # A script's own loader is unknown: only its steps can be counted.
    position = state.position.samples
    return range(position, position + state.session.global_batch), 1


class _BatchReader(Iterator[list[int]]):
    """Iterator that follows the last step whenever it is asked for more.

    It is no generator, because a loader that reads ahead also asks at its last steps, when there is
    no more to read.
    """

    def __init__(self, session: ScriptSession, batches: Iterator[list[int]]) -> None:
        self._session, self._batches, self._is_first = session, batches, True

    def __next__(self) -> list[int]:
        self._session.before_batch(is_first=self._is_first)
        self._is_first = False
        return next(self._batches)


__all__ = ["Batches", "current_batch"]
