"""How far a job is, as short texts for people; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.api.schemas import ProgressView


def epochs_text(progress: ProgressView) -> str:
    """Describe how many epochs are done, and of how many if that is known."""
    if progress.epochs is None:
        return f"{progress.epoch} epoch{'' if progress.epoch == 1 else 's'} done"
    return f"{progress.epoch} of {progress.epochs} epochs done"


def step_text(progress: ProgressView) -> str:
    """Describe the newest step, and how many there will be if that is known."""
    return (
        f"step {progress.step}"
        if progress.steps is None
        else f"step {progress.step}/{progress.steps}"
    )
