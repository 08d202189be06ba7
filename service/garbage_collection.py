"""Settings of Python's garbage collector for processes that run for long."""

from __future__ import annotations

import gc


def freeze_loaded_objects() -> None:
    """Exclude all objects that exist now from later collections: they stay, and looking through
    them would stop the process for 0.1 s.
    """
    gc.collect()
    gc.freeze()
