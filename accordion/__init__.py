"""Accordion: gradient compression that adapts while the job runs.

Names are imported at first use, so that `import accordion` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accordion.config import Config, DetectorConfig, Window
    from accordion.controller import Controller
    from accordion.errors import AccordionError
    from accordion.messages import Decision, Override
    from accordion.session import Session, attach
    from accordion.step_signals import Signal

_HOMES = {
    "AccordionError": "accordion.errors",
    "Config": "accordion.config",
    "Controller": "accordion.controller",
    "Decision": "accordion.messages",
    "DetectorConfig": "accordion.config",
    "Override": "accordion.messages",
    "Session": "accordion.session",
    "Window": "accordion.config",
    "Signal": "accordion.step_signals",
    "attach": "accordion.session",
}

__all__ = [
    "AccordionError",
    "Config",
    "Controller",
    "Decision",
    "DetectorConfig",
    "Override",
    "Session",
    "Signal",
    "Window",
    "attach",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accordion' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
