"""Warnings about a run that continues but does not behave as configured; stdlib only."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from accordion.config import Config, format_layers

SKIPPED_IN_A_ROW = 10
"""Consecutive skipped steps after which a worker warns, and again whenever the number has doubled.

It is more than a GradScaler usually skips at its start, while it searches for a scale.
"""
_POLICIES_WITHOUT_WINDOWS = frozenset({"fixed", "scheduled"})


class TrainingWarning(UserWarning):
    """Training continues, but does not behave as configured."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)


@dataclass(slots=True)
class WindowProgress:
    """Progress of a session through its detector's windows."""

    epochs: int = 0
    """Epochs ended since `attach`."""
    compared: bool = False
    """Whether two windows were compared since then."""


def warn_of_skipped_steps(
    in_a_row: int, layers: Sequence[str], *, too_large: Sequence[str], rank: int
) -> None:
    """Warn of consecutive skipped steps when there are 10, 20, 40 and so on.

    `layers` are those whose gradients are not finite on this worker, `too_large` those whose
    gradients do not fit into their format on the wire; without any, only rank 0 warns.
    """
    doublings, rest = divmod(in_a_row, SKIPPED_IN_A_ROW)
    if rest or doublings & (doublings - 1) or not (layers or too_large or rank == 0):
        return
    advice = "Check for a learning rate that is too high, a NaN loss, or fp16 without a GradScaler"
    if layers:
        where = f"the gradients of {format_layers(layers)} are not finite"
    elif too_large:
        where = f"the gradients of {format_layers(too_large)} are beyond the range of method half"
        advice = "Give half the dtype bf16, or attach() the GradScaler if the loss has one"
    else:
        where = "a gradient on another worker is not finite"
    warnings.warn(
        f"rank {rank}: {in_a_row} steps in a row were skipped, since {where}; parameters do not"
        f" change. {advice}",
        TrainingWarning,
        stacklevel=2,
    )


def warn_if_too_short(config: Config, epochs: int | None) -> None:
    """Warn if a run of this many epochs ends before its windows allow a first change of level."""
    first = first_change(config)
    if first is not None and epochs is not None and epochs <= first:
        warnings.warn(
            _too_short_sentence(config, f"{epochs} epochs end before"),
            TrainingWarning,
            stacklevel=3,
        )


def warn_if_never_compared(config: Config, progress: WindowProgress) -> None:
    """Warn if a session trained for two epochs or more without comparing two windows."""
    if progress.epochs > 1 and not progress.compared and first_change(config) is not None:
        sentence = _too_short_sentence(
            config, f"{progress.epochs} epochs were trained and ended before"
        )
        warnings.warn(sentence, TrainingWarning, stacklevel=2)


def first_change(config: Config) -> int | None:
    """Return the first epoch whose levels can change; None if levels do not depend on epoch
    windows.
    """
    window = config.detector.window.epochs
    if window is None or config.policy in _POLICIES_WITHOUT_WINDOWS:
        return None
    return window + 1 if config.detector.statistic == "paper" else 2 * window


def _too_short_sentence(config: Config, what: str) -> str:
    return (
        f"{what} two windows of {config.detector.window.epochs} epochs could be compared: levels"
        f" change in epoch {first_change(config)} at the earliest; set fewer epochs in"
        " Config(detector=DetectorConfig(window=Window(epochs=...)))"
    )
