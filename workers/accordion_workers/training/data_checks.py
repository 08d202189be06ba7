"""Checks that a job has data, and that all its ranks and worker groups have as many samples."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING

from accordion_workers.common.errors import TaskRaised
from accordion_workers.training.slow_work import gather_objects

if TYPE_CHECKING:
    from accordion_workers.training.train_state import TrainState


def check_not_empty(training: Sized, held_out: Sized) -> None:
    """Check the data that a task has loaded.

    Raises:
        TaskRaised: there are no samples.
    """
    for name, data in (("training", training), ("held-out", held_out)):
        if len(data) == 0:
            raise TaskRaised(
                None,
                None,
                f"the {name} data have no samples; check the paths and patterns by which the task"
                " finds them",
            )


def count_samples(state: TrainState) -> tuple[int, int]:
    """Return the number of training and of held-out samples; a script has none of the latter."""
    return len(state.data), len(state.held_out)


def check_equal_on_ranks(state: TrainState) -> None:
    """Check that all ranks have as many samples; all ranks together.

    Raises:
        TaskRaised: a rank has another number than rank 0; on all ranks.
    """
    counts = gather_objects(state, count_samples(state))
    other = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
    if other is not None:
        raise TaskRaised(
            None,
            None,
            f"rank 0 has {_describe(counts[0])}, and rank {other} has {_describe(counts[other])};"
            " give all workers the same data, since each of them reads its own part",
        )


def check_equal_to_saved(state: TrainState, saved: Sequence[int]) -> None:
    """Check that the job has as many samples as when its checkpoint was saved.

    Raises:
        TaskRaised: it has another number.
    """
    counts = count_samples(state)
    if tuple(saved) != counts:
        raise TaskRaised(
            state.session.steps,
            state.position.epoch,
            f"the job has {_describe(counts)}, and its checkpoint was saved with"
            f" {_describe(saved)}; give the job the same data again, or start another job with this"
            " model (warm_start)",
        )


def _describe(counts: Sequence[int]) -> str:
    training, held_out = counts
    return f"{training} training samples" + (f" and {held_out} held-out ones" if held_out else "")


__all__ = ["check_equal_on_ranks", "check_equal_to_saved", "check_not_empty", "count_samples"]
