"""Ends a process soon after its parent."""

from __future__ import annotations

import os
import threading
import time

PARENT_POLL_S = 0.5
"""Seconds between two looks whether the parent still runs."""


def end_with(parent: int) -> None:
    """End this process soon after its parent, such as a Ray task that was cancelled."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
