"""Warnings of steps that are skipped, and rounds that are undone, again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from accordion.config import format_layers
from accordion.session.training_warnings import TrainingWarning

SKIPPED_IN_A_ROW = 10
"""Consecutive skipped steps after which a worker warns, and again whenever the number has doubled.

It is more than a GradScaler usually skips at its start, while it searches for a scale.
"""
LARGEST_GRADIENT = 1e34
"""Magnitude from which sums of a large layer's gradient may overflow fp32, which ends at 3.4e38."""
_ADVICE = "Check for a learning rate that is too high, a NaN loss"


class SkippedInARow:
    """Warns of consecutive skipped steps, or undone rounds, when there are 10, 20, 40 and so on."""

    number = 0
    """How many it is now."""

    def observe(self, explain: Callable[[int], str | None], *, taken: bool) -> None:
        """Observe a step or round; if it is one too many, warn with the sentence that `explain`
        returns for their number, unless that is None.
        """
        self.number = 0 if taken else self.number + 1
        doublings, rest = divmod(self.number, SKIPPED_IN_A_ROW)
        if taken or rest or doublings & (doublings - 1):
            return
        if (sentence := explain(self.number)) is not None:
            warnings.warn(sentence, TrainingWarning, stacklevel=2)


def skipped_sentence(
    in_a_row: int,
    broken_layers: tuple[Sequence[str], Sequence[str]],
    *,
    rank: int,
    is_round: bool = False,
) -> str | None:
    """Return the warning of this worker about steps that all workers skipped, or rounds that all
    undid; None if it knows no more than that, and rank 0 warns.

    `broken_layers` are those whose gradients, or changes in a round, or sums of them in fp32 are
    not finite on this worker, and those whose values do not fit into their format on the wire.
    """
    layers, too_large = broken_layers
    if not layers and not too_large and rank != 0:
        return None
    what, value = "steps in a row were skipped", "gradient"
    if is_round:
        what, value = "rounds of local steps in a row were undone", "change"
    advice = f"{_ADVICE}, or fp16 whose GradScaler is missing or was not given to attach()"
    if layers:
        where = (
            f"the {value}s of {format_layers(layers)} are not finite, or too large for sums in fp32"
            f" (from about {LARGEST_GRADIENT:g} on)"
        )
    elif too_large:
        where = f"the {value}s of {format_layers(too_large)} are too large for their method"
        advice = "Give half the dtype bf16, or attach() the GradScaler if the loss has one"
    else:
        where = f"a {value} on another worker, or of a bias or norm, is not finite or too large"
    return f"rank {rank}: {in_a_row} {what}, since {where}; parameters do not change. {advice}"


def skipped_locally_sentence(
    in_a_row: int, layers: Sequence[str], *, rank: int, num_shards: int
) -> str | None:
    """Return the warning of a worker about local steps that only it skipped, with those that hold
    the model together, because its gradients of these layers were not finite; None without any.
    """
    if not layers:
        return None
    who = "this worker alone" if num_shards == 1 else f"the {num_shards} workers of this replica"
    return (
        f"rank {rank}: {in_a_row} local steps in a row were skipped by {who}, since its"
        f" gradients of {format_layers(layers)} are not finite, or have a norm that is not; its"
        f" parameters change at the end of rounds only. {_ADVICE}, or data of this worker alone"
    )
