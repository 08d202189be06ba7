"""Response models for a thinned history as columns, which charts draw."""

from __future__ import annotations

from pydantic import Field

from accordion_service.schemas.jobs import Answer

Codes = dict[str, list[int | None]]
"""For each layer, a place in `names` for each row; null where the layer has no such value."""


class EpochColumns(Answer):
    """Finished epochs, oldest first: the values at one place of all lists are of one epoch."""

    epoch: list[int]
    """Numbers of the epochs."""
    step: list[int]
    """Optimizer steps of the job at the end of each epoch."""
    attempt: list[int]
    """Attempts that trained them."""
    generation: list[int]
    """Worker groups that trained them, counted over all attempts."""
    world_size: list[int]
    """Numbers of workers."""
    loss: list[float | None]
    """Mean training losses; null where one was not finite."""
    lr: list[float]
    """Learning rates."""
    local_steps: list[int]
    """Optimizer steps of each worker between two exchanges."""
    agreement: list[float | None]
    """Agreements of the workers; null where no window ended, with one worker, and where workers
    changed within the window.
    """
    metrics: dict[str, list[float | None]]
    """Metrics of the evaluations, by name; null where an epoch has none."""
    seconds_by_phase: dict[str, list[float | None]]
    """Seconds that rank 0 spent in each phase."""
    bytes: dict[str, list[int]]
    """Bytes of one worker, all methods, under the names that `bytes` of an epoch has."""
    regime_by_layer: Codes
    """Regimes by layer, as places in `names`."""
    level_by_layer: Codes
    """Names of levels by layer, as places in `names`."""


class DecisionColumns(Answer):
    """Decisions, oldest first: the values at one place of all lists are of one decision."""

    epoch: list[int]
    """First epoch for which each decision holds."""
    step: list[int]
    """First step for which it holds."""
    attempt: list[int]
    """Attempts in which they were applied."""
    generation: list[int]
    """Worker groups that applied them, counted over all attempts."""
    batch_override: list[str | None]
    """IDs of the overrides of the batch in force."""
    local_steps_override: list[str | None]
    """IDs of the overrides of local steps in force."""
    optimizer_overrides: dict[str, list[str | None]]
    """IDs of the overrides in force of the optimizer's settings; settings that had one."""
    change_by_layer: dict[str, list[float | None]]
    """Relative changes of the statistic by layer, to four digits; null for those not compared."""
    override_by_layer: Codes
    """IDs of the overrides in force by layer, as places in `names`; layers that had one."""


class HistoryView(Answer):
    """A history with a bounded number of epochs and decisions, as columns."""

    num_epochs: int
    """Number of finished epochs, also of those that are left out."""
    num_decisions: int
    """Number of decisions, also of those that are left out."""
    names: list[str] = Field(default_factory=list)
    """Texts that the columns by layer refer to by their place, counted from 0."""
    epochs: EpochColumns
    """Epochs."""
    decisions: DecisionColumns
    """Decisions that were in force in these epochs, and the newest ones."""
