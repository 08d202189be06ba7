"""Accordion: gradient compression that adapts while the job runs.

Names are imported at first use, so that `import accordion` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accordion.base.errors import AccordionError
    from accordion.base.local_steps import LocalSteps
    from accordion.base.messages import Decision, Override
    from accordion.compress.step_signals import Signal
    from accordion.config import Config, DetectorConfig, Window
    from accordion.decide.controller import Controller
    from accordion.session.distributed_states import distributed_state, load_distributed_state
    from accordion.session.session import Session, attach

_HOMES = {
    "AccordionError": "accordion.base.errors",
    "Config": "accordion.config",
    "Controller": "accordion.decide.controller",
    "Decision": "accordion.base.messages",
    "DetectorConfig": "accordion.config",
    "LocalSteps": "accordion.base.local_steps",
    "Override": "accordion.base.messages",
    "Session": "accordion.session.session",
    "Window": "accordion.config",
    "Signal": "accordion.compress.step_signals",
    "attach": "accordion.session.session",
    "distributed_state": "accordion.session.distributed_states",
    "load_distributed_state": "accordion.session.distributed_states",
}

__all__ = [
    "AccordionError",
    "Config",
    "Controller",
    "Decision",
    "DetectorConfig",
    "LocalSteps",
    "Override",
    "Session",
    "Signal",
    "Window",
    "attach",
    "distributed_state",
    "load_distributed_state",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accordion' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"accordion.{name} needs torch; pip install 'accordion-train[train]'", name="torch"
        ) from error
