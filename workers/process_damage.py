"""Explains errors that follow from what user code did to its own process: destroyed groups, closed descriptors."""

from __future__ import annotations

import functools
import sys
import traceback
from typing import Any

import torch.distributed as dist

from workers.symptoms import code_place, is_bad_descriptor

_destroyed_at: list[str] = []
"""Line of code that destroyed a process group last."""


def note_destroyed_groups() -> None:
    """Remember from now on which line of code destroys a process group.

    User code is imported later, so `from torch.distributed import destroy_process_group` is covered too.
    """
    destroy = dist.destroy_process_group
    if hasattr(destroy, "__wrapped__"):
        return

    @functools.wraps(destroy)
    def noted(*arguments: Any, **named: Any) -> None:
        _destroyed_at[:] = [code_place(traceback.extract_stack(sys._getframe(1)))]
        destroy(*arguments, **named)

    dist.destroy_process_group = noted


def explain_damage(error: BaseException) -> str | None:
    """Return what user code broke, if that explains an error of a group that trains; else None."""
    if _destroyed_at and not dist.is_initialized():
        return (
            f"the process group was destroyed at {_destroyed_at[0]} while the job trains; remove that call, "
            "the group ends with the job"
        )
    if is_bad_descriptor(error):
        return (
            "a file descriptor that training uses was closed by code in this process; "
            "close only descriptors that your code has opened"
        )
    return None


__all__ = ["explain_damage", "note_destroyed_groups"]
