"""Outcome of a training function, how rank 0 learns what another rank's function raised, and why
a worker group follows another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import PrefixStore, Store

from accordion_ray.identity import GuestState
from accordion_ray.train_context import read_training_error
from accordion_workers.common.error_kinds import is_peer_loss
from accordion_workers.common.error_text import format_with_line
from accordion_workers.records.contract import FailureRecord, ResizeRecord

POLL_S = 0.5
"""Pause between two reads of the store while training; Ray Train polls its workers every 2 s."""
RETURN_POLL_S = 0.05
"""Pause between two reads after rank 0's function has ended: its process may end soon."""
PEER_FAILURE_WAIT_S = 1.0
"""How long rank 0, having lost its peers, waits to learn what another rank raised."""

_FAILURE = "failure"

logger = logging.getLogger(__name__)


def classify_failure(error: BaseException, *, rank: int) -> FailureRecord:
    """Return the record of an error that a rank's training function raised."""
    if isinstance(error, Exception) and is_peer_loss(error):
        message = f"rank {rank} lost its peers in a collective"
        return FailureRecord(cause="infrastructure", rank=rank, message=message)
    message = (
        f"rank {rank}: {format_with_line(error)}; the traceback is in the output of the script that"
        " called fit(), and in logs/train of Ray's session directory"
    )
    return FailureRecord(cause="job", rank=rank, message=message)


def build_change_record(before: GuestState, *, world_size: int) -> ResizeRecord | FailureRecord:
    """Return why this worker group follows one that recorded no end: Ray Train ended that to train
    with more workers, or it was lost.

    Ray Train tells neither the old nor the new group why. An elastic run grows without a failure,
    and shrinks by losing workers.
    """
    if world_size > before.world_size:
        message = f"Ray Train changes the group from {before.world_size} to {world_size} workers"
        return ResizeRecord(
            cause="joined",
            old=before.world_size,
            new=world_size,
            step=before.step,
            message=message,
        )
    message = "the processes of the run were lost, and it was started again"
    return FailureRecord(cause="infrastructure", rank=None, step=before.step, message=message)


class OutcomeStore:
    """Keeps how the ranks' training functions ended, in the key-value store of the process group.

    A rank that raises leaves rank 0 waiting in a collective until Ray Train ends all processes,
    within seconds; only the store can still be reached. A rank may also fail after rank 0 has
    returned.
    """

    def __init__(self, store: Store, run: str, *, world_size: int) -> None:
        self._store = PrefixStore(f"accordion_ray/outcomes/{run}", store)
        self._others = [f"returned {rank}" for rank in range(1, world_size)]

    def post_failure(self, failure: FailureRecord) -> None:
        """Keep the failure, unless there is one."""
        self._store.compare_set(_FAILURE, "", failure.model_dump_json())

    def post_return(self, rank: int) -> None:
        """Keep that the rank's function has returned."""
        self._store.set(f"returned {rank}", "")

    def read_failure(self) -> FailureRecord | None:
        """Return the failure that was posted; None without one."""
        if not self._store.check([_FAILURE]):
            return None
        return FailureRecord.model_validate_json(self._store.get(_FAILURE))

    def have_all_returned(self) -> bool:
        """Return whether the functions of all ranks but rank 0 have returned."""
        return self._store.check(self._others)


def watch_end(
    on_end: Callable[[FailureRecord | None], object],
    *,
    rank: int,
    outcomes: OutcomeStore | None,
    on_own_end: Callable[[], object],
) -> None:
    """Call a function once when the run's training functions have all returned, or one has failed.

    It is called on rank 0, with None if all returned. The other ranks post their outcome, which
    rank 0 waits for: its process lives until Ray Train knows that all ranks have ended. Rank 0 of a
    single worker has no `outcomes`.

    `on_own_end` is called as soon as rank 0's function has ended, because Ray Train may end the
    process while rank 0 waits for the others.
    """
    training = threading.current_thread()

    def watch() -> None:
        try:
            if rank == 0:
                on_end(_wait_for_all(training, outcomes, on_own_end))
            elif outcomes is not None:
                _post_outcome(training, outcomes, rank=rank)
        except RuntimeError:
            logger.debug("rank 0's store is gone", exc_info=True)

    threading.Thread(target=watch, name="accordion-end", daemon=True).start()


def _post_outcome(training: threading.Thread, outcomes: OutcomeStore, *, rank: int) -> None:
    training.join()
    error = read_training_error()
    if error is None:
        outcomes.post_return(rank)
        return
    failure = classify_failure(error, rank=rank)
    if failure.cause == "job":
        outcomes.post_failure(failure)


def _wait_for_all(
    training: threading.Thread, outcomes: OutcomeStore | None, on_own_end: Callable[[], object]
) -> FailureRecord | None:
    while training.is_alive():
        training.join(POLL_S)
        if outcomes is not None and (failure := outcomes.read_failure()) is not None:
            return failure
    on_own_end()
    error = read_training_error()
    if error is not None:
        return _find_cause(classify_failure(error, rank=0), outcomes)
    while outcomes is not None and not outcomes.have_all_returned():
        if (failure := outcomes.read_failure()) is not None:
            return failure
        time.sleep(RETURN_POLL_S)
    return None


def _find_cause(own: FailureRecord, outcomes: OutcomeStore | None) -> FailureRecord:
    """Return another rank's failure if rank 0 only lost its peers; else rank 0's own failure."""
    deadline = time.monotonic() + PEER_FAILURE_WAIT_S
    while outcomes is not None and own.cause != "job" and time.monotonic() < deadline:
        if (failure := outcomes.read_failure()) is not None:
            return failure
        time.sleep(RETURN_POLL_S)
    return own
