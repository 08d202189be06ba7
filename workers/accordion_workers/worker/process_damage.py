"""Explains errors caused by user code that destroyed process groups or closed descriptors."""

from __future__ import annotations

import functools
import sys
import traceback
from pathlib import Path
from typing import Any

import torch.distributed as dist

from accordion_workers.common.error_kinds import is_bad_descriptor
from accordion_workers.common.error_text import find_user_line, is_user_code
from accordion_workers.worker.process_group import hold_groups

_DISTRIBUTED = Path(dist.__file__).parent
_PROJECT = Path(__file__).parents[2]
_destroyed_at: list[str] = []
"""Line of code that destroyed a process group last."""


def note_destroyed_groups() -> None:
    """Remember from now on which line of code destroyed a process group, until another group is
    made, and hold its groups until `release_groups`.

    User code is imported later, so `from torch.distributed import destroy_process_group` is covered
    too.
    """
    make, destroy = dist.init_process_group, dist.destroy_process_group
    if hasattr(destroy, "__wrapped__"):
        return

    @functools.wraps(destroy)
    def noted(*arguments: Any, **named: Any) -> None:
        _destroyed_at[:] = [find_user_line(traceback.extract_stack(sys._getframe(1)))]
        if {*arguments, *named.values()} <= {None, dist.group.WORLD}:
            hold_groups()
        destroy(*arguments, **named)

    @functools.wraps(make)
    def forgotten(*arguments: Any, **named: Any) -> None:
        make(*arguments, **named)
        _destroyed_at.clear()

    dist.init_process_group, dist.destroy_process_group = forgotten, noted


def explain_damage(error: BaseException) -> str | None:
    """Return what user code broke, if that explains an error of a group that trains; else None.

    It does not explain an error that user code raised itself.
    """
    if not _is_of_training(error):
        return None
    if _destroyed_at and not dist.is_initialized():
        return (
            f"the process group was destroyed at {_destroyed_at[0]} while the job trains; remove"
            " that call; the job destroys the group itself"
        )
    if is_bad_descriptor(error):
        return (
            "a file descriptor that training uses was closed by code in this process; "
            "close only descriptors that your code has opened"
        )
    return None


def _is_of_training(error: BaseException) -> bool:
    """Return whether gloo, torch.distributed or this project raised the error, perhaps in a library
    that it called.
    """
    if "gloo/transport" in str(error):
        # Raised in C++, perhaps under the user's own `loss.backward()`.
        return True
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_code(frame.filename):
            return False
        if Path(frame.filename).is_relative_to(_DISTRIBUTED) or Path(frame.filename).is_relative_to(
            _PROJECT
        ):
            return True
    return False


__all__ = ["explain_damage", "note_destroyed_groups"]
