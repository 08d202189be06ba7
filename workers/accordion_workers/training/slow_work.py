"""Slow work, such as reading from a storage, that all ranks do at the same time.

While any rank is still working, all ranks take part in small collectives, so that waiting for a
slow storage does not run into a collective's timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from accordion_workers.checkpoint.storage import MissingCheckpointsError
from accordion_workers.common.errors import CheckpointError

if TYPE_CHECKING:
    from accordion_workers.training.train_state import TrainState

POLL_INTERVAL_S = 0.5
"""Seconds that a rank waits for its own work before it reports to the others; well below a
collective's timeout.
"""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 20.0
"""Longest pause between retries of a failing storage; pauses double up to this value, which is
below a collective's timeout.
"""

SLOW_STORAGE_S = 10.0
"""Seconds after which a checkpoint still being written makes the next one be skipped, and a wait
for the storage is shown.
"""
_T = TypeVar("_T")


class BackgroundCall(Generic[_T]):
    """Runs a call in a thread of its own and keeps its result or error."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._value: list[_T] = []
        self.error: BaseException | None = None
        # daemon: a worker that ends early must not wait for a storage that hangs.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the call; return False if it is still running after the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def value(self) -> _T:
        """Result of the call; valid only after it returned without an error."""
        return self._value[0]

    def _run(self) -> None:
        try:
            self._value = [self._work()]
        except BaseException as error:  # noqa: BLE001  # handled by the caller that waits
            self.error = error


class SlowWaitNotice:
    """Shows what this rank waits for, at intervals that double from `SLOW_STORAGE_S` on.

    `text` has a field for the seconds waited.
    """

    def __init__(self, state: TrainState, text: str) -> None:
        self._state, self._text = state, text
        self._start = state.phases.clock.elapsed()
        self._next_s = SLOW_STORAGE_S

    def show(self) -> str | None:
        """Count as activity if the work is slow; return the text if it is shown now."""
        waited_s = self._state.phases.clock.elapsed() - self._start
        control = self._state.context.control
        if waited_s < self._next_s:
            control.activity_count += self._next_s > SLOW_STORAGE_S
            return None
        self._next_s *= 2
        text = self._text.format(waited_s)
        control.show_wait(text)
        return text

    def end(self) -> None:
        """Clear the notice."""
        if self._next_s > SLOW_STORAGE_S:
            self._state.context.control.show_wait("")


def gather_objects(state: TrainState, own: Any) -> list[Any]:
    """Return the objects of all ranks, in rank order."""
    return state.context.peers.gather_objects(own)


def decide_on_rank_0(state: TrainState, decide: Callable[[], _T]) -> _T:
    """Call `decide` on rank 0 and return its result on all ranks."""
    decided: Any = decide() if state.context.rank == 0 else None
    shared: _T = state.context.peers.share_object(decided)
    return shared


def run_on_all_ranks(
    state: TrainState, work: Callable[[], _T]
) -> tuple[_T | None, list[CheckpointError | OSError]]:
    """Run `work` on every rank; return this rank's result and the errors of all ranks.

    Raises:
        RuntimeError: another worker is gone.
    """
    background = BackgroundCall(work)
    slow = SlowWaitNotice(state, "waiting for this job's storage for {:.0f} s")
    while True:
        ended = background.wait(POLL_INTERVAL_S)
        slow.show()
        if (
            ended
            and background.error is not None
            and not isinstance(background.error, CheckpointError | OSError)
        ):
            raise background.error
        ends = gather_objects(state, (ended, _copy_error(background.error)))
        if all(over for over, _ in ends):
            break
    errors = [error for _, error in ends if error is not None]
    return (None if errors else background.value), errors


def _copy_error(error: BaseException | None) -> CheckpointError | OSError | None:
    """Copy an error without its cause, which may not be picklable."""
    match error:
        case CheckpointError() | MissingCheckpointsError():
            return type(error)(str(error))
        case OSError():
            if not error.errno:
                return OSError(str(error))
            path = f": {error.filename}" if error.filename else ""
            return OSError(error.errno, f"{error.strerror}{path}")
    return None


__all__ = [
    "BackgroundCall",
    "SlowWaitNotice",
    "decide_on_rank_0",
    "gather_objects",
    "run_on_all_ranks",
]
