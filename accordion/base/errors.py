"""Every error of the library, in one tree; stdlib only.

    AccordionError
    ├── ConfigError            a setting is wrong; raised when the setting is created
    ├── ReportError            a report does not match the model or the previous decisions
    ├── OverrideError          an override cannot be applied to this job
    ├── StateError             a saved state does not match this model
    ├── HookError              a module or process group is not supported
    └── MissingFrameworkError  an integration's framework is not installed

Every message states the value, the limit and a way out. All errors can be pickled.
"""

from __future__ import annotations


class AccordionError(Exception):
    """Base class of all errors of the library."""


class ConfigError(AccordionError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


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
    """A module, bucket or process group is not supported."""


class MissingFrameworkError(AccordionError, ImportError):
    """The framework of an integration is not installed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)


def drop_tracebacks(error: Exception) -> Exception:
    """Return the error without tracebacks, whose frames hold what they worked with: the hook, which
    keeps its thread alive, and process groups, whose sockets stay open.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


__all__ = [
    "AccordionError",
    "ConfigError",
    "HookError",
    "MissingFrameworkError",
    "OverrideError",
    "ReportError",
    "StateError",
    "drop_tracebacks",
]
