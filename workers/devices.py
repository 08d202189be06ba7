"""Waits until the GPU of a new worker process is free of what a process before it has left there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

FREE_SHARE = 0.9
"""Part of a GPU's memory that is free when nobody uses it: the driver keeps some for itself."""
LONGEST_WAIT_S = 30.0
_TRY_AGAIN_S = 0.2

log = logging.getLogger(__name__)


def wait_for_free_memory(
    measure: Callable[[], tuple[int, int]],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait until the memory of a GPU is free, at most `LONGEST_WAIT_S`; says whether it was.

    Ray gives a GPU to the next process as soon as the one before has died, and the driver needs seconds more to free
    its memory. `measure` gives free and total bytes.
    """
    deadline = clock() + LONGEST_WAIT_S
    while True:
        free, total = measure()
        if free >= FREE_SHARE * total:
            return True
        if clock() >= deadline:
            log.warning("only %.1f of %.1f GB of the GPU are free; another process uses it", free / 1e9, total / 1e9)
            return False
        pause(_TRY_AGAIN_S)


__all__ = ["FREE_SHARE", "LONGEST_WAIT_S", "wait_for_free_memory"]
