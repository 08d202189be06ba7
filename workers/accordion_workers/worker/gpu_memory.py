"""Waits until the GPU of a new worker process has no memory of an earlier process left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

FREE_SHARE = 0.9
"""Share of a GPU's memory that is free when the GPU is idle: the driver reserves the rest."""
LONGEST_WAIT_S = 30.0
_TRY_AGAIN_S = 0.2

log = logging.getLogger(__name__)


def wait_for_free_memory(
    measure: Callable[[], tuple[int, int]],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait up to `LONGEST_WAIT_S` for the memory of a GPU to be free; return whether it is.

    Ray reassigns a GPU as soon as a process has died, seconds before the driver has freed its
    memory. `measure` returns free and total bytes.
    """
    deadline = clock() + LONGEST_WAIT_S
    while True:
        free, total = measure()
        if free >= FREE_SHARE * total:
            return True
        if clock() >= deadline:
            log.warning(
                "only %.1f of %.1f GB of the GPU are free; another process is using it",
                free / 1e9,
                total / 1e9,
            )
            return False
        pause(_TRY_AGAIN_S)


__all__ = ["FREE_SHARE", "LONGEST_WAIT_S", "wait_for_free_memory"]
