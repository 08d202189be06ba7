"""Running statistics of a model, such as BatchNorm's: each worker has its own, until they are made one."""

from __future__ import annotations

from workers.run import Run


def average_buffers(run: Run) -> None:
    """Make the buffers equal on all workers, before evaluation and checkpoint; all ranks together."""
    del run
