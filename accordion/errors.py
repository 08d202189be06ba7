"""Every error of the library, in one tree; stdlib only.

    AccordionError
    ├── ConfigError      a setting is wrong: raised where the setting is born
    ├── ReportError      a report does not fit the model or the decisions before it
    ├── OverrideError    an override cannot be applied to this job
    ├── StateError       a saved state does not fit this model
    ├── HookError        the hook met something it cannot serve
    └── MissingFrameworkError  an integration's framework is not installed

All carry one sentence with the value, the limit and the way out, and survive pickling.
"""

from __future__ import annotations


class AccordionError(Exception):
    """Root of the library's errors: `except AccordionError` catches all of them and nothing
    else.
    """


class ConfigError(AccordionError, ValueError):
    """A setting is unknown, out of range or contradicts another."""


class ReportError(AccordionError, ValueError):
    """A gradient report does not match the model, or is older than the last decision."""


class OverrideError(AccordionError, ValueError):
    """An override cannot be applied, for example because the job has no such level or layer."""

    def __init__(self, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.field = field
        """Path of the wrong field, such as `level` or `layers/0`; empty if it is none of them."""


class StateError(AccordionError, ValueError):
    """A saved state does not match the model it is loaded into."""


class HookError(AccordionError, RuntimeError):
    """The hook cannot serve this module, bucket or process group."""


class MissingFrameworkError(AccordionError, ImportError):
    """The framework of an integration is not installed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)


__all__ = [
    "AccordionError",
    "ConfigError",
    "HookError",
    "MissingFrameworkError",
    "OverrideError",
    "ReportError",
    "StateError",
]
