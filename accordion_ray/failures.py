"""How a training function ended, and how rank 0 learns what another rank's function raised."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import PrefixStore, Store

from accordion_ray.train_context import training_error
from workers.contract import FailureRecord
from workers.symptoms import is_collateral, raised_at

POLL_S = 0.5
"""Pause between two looks at the board; Ray Train polls its workers every 2 s."""
CULPRIT_WAIT_S = 1.0
"""How long rank 0, having lost its peers, waits to learn what another rank raised."""

_KEY = "failure"

log = logging.getLogger(__name__)


def failure_of(error: BaseException, *, rank: int) -> FailureRecord:
    """Return the record of an error that a rank's training function raised."""
    if isinstance(error, Exception) and is_collateral(error):
        message = f"rank {rank} lost its peers in a collective"
        return FailureRecord(cause="infrastructure", rank=rank, message=message)
    message = f"rank {rank}: {raised_at(error)}; the traceback is in Ray's log of the run"
    return FailureRecord(cause="job", rank=rank, message=message)


class FailureBoard:
    """Keeps the first failure that a rank posts, in the key-value store of the process group.

    A rank that raises leaves rank 0 waiting in a collective until Ray Train ends all processes, within
    seconds; only the store can still be reached.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = PrefixStore(f"accordion_ray/failures/{run}", store)

    def post(self, failure: FailureRecord) -> None:
        """Keep the failure, unless there is one."""
        self._store.compare_set(_KEY, "", failure.model_dump_json())

    def read(self) -> FailureRecord | None:
        """Return the failure that was posted; None without one."""
        if not self._store.check([_KEY]):
            return None
        return FailureRecord.model_validate_json(self._store.get(_KEY))


def watch_end(on_end: Callable[[FailureRecord | None], None], *, rank: int, board: FailureBoard | None) -> None:
    """Call a function once when the training function that calls this has ended, or failed on a rank.

    It gets None if the training function returned. Other ranks than the first only post their failures
    to the board, from which rank 0 reads them.
    """
    training = threading.current_thread()

    def watch() -> None:
        try:
            failure = _wait_for_end(training, rank=rank, board=board)
        except RuntimeError:
            log.debug("rank 0's store is gone", exc_info=True)
            return
        if rank == 0:
            on_end(failure)
        elif board is not None and failure is not None and failure.cause == "job":
            board.post(failure)

    threading.Thread(target=watch, name="accordion-end", daemon=True).start()


def _wait_for_end(training: threading.Thread, *, rank: int, board: FailureBoard | None) -> FailureRecord | None:
    while training.is_alive():
        training.join(POLL_S)
        if rank == 0 and board is not None and (failure := board.read()) is not None:
            return failure
    error = training_error()
    if error is None:
        return None
    own = failure_of(error, rank=rank)
    deadline = time.monotonic() + CULPRIT_WAIT_S
    while rank == 0 and board is not None and own.cause != "job" and time.monotonic() < deadline:
        if (failure := board.read()) is not None:
            return failure
        time.sleep(CULPRIT_WAIT_S / 20)
    return own
