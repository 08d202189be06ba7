"""Settings of Python's garbage collector for processes that run for long."""

from __future__ import annotations

import gc


def leave_out_loaded_objects() -> None:
    """Leave out what is there by now of later collections: it stays, and looking through it again
    would stop the process for 0.1 s.
    """
    gc.collect()
    gc.freeze()
