"""Runs one training job on Ray: supervisor, workers, the Accordion actor.

People's own code imports from here: a script `session`, a task `TensorData` and its interfaces.
Names are imported at first use, so that a server can read the spec of a job without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accordion_workers.data import Data, TensorData
    from accordion_workers.tasks.base import Task
    from accordion_workers.training.script_session import (
        Batches,
        ScriptExit,
        ScriptSession,
        session,
    )

_HOMES = {
    "Batches": "accordion_workers.training.script_session",
    "Data": "accordion_workers.data",
    "ScriptExit": "accordion_workers.training.script_session",
    "ScriptSession": "accordion_workers.training.script_session",
    "Task": "accordion_workers.tasks.base",
    "TensorData": "accordion_workers.data",
    "session": "accordion_workers.training.script_session",
}

__all__ = ["Batches", "Data", "ScriptExit", "ScriptSession", "Task", "TensorData", "session"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accordion_workers' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("accordion"):
            raise
        raise ModuleNotFoundError(
            f"accordion_workers.{name} needs {error.name}; pip install 'accordion-train[ray]'",
            name=error.name,
        ) from error
