"""Records that controller, workers and service exchange; stdlib only, with JSON by `to_json`.

Epochs and steps are counted from 0. An interval of epochs is half open: `until=30` means epochs
before 30.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Regime = Literal["critical", "stable"]
BatchLevel = Literal["low", "high"]
"""`low`: the small global batch, for critical regimes; `high`: the large one."""
StatisticKind = Literal["mean", "paper"]
OptimizerTarget = Literal["lr", "weight_decay", "clip_norm"]
"""Settings of an optimizer: learning rate, weight decay, and the norm that clips gradients."""
OverrideTarget = Literal["compression", "batch", "local_steps", "lr", "weight_decay", "clip_norm"]
OptionValue = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """Name and shape of one parameter tensor."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Compression level of a layer: a method and its options, with a name."""

    name: str
    """`low`, `high`, or for a level of an override its options, such as `rank=2`."""
    method: str
    """Compression method."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of the method by name, such as `{"rank": 2}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Measurements of a group of workers since the last decision.

    What only rank 0 measures is said so; all other fields are the same on every rank.
    """

    epoch: int
    """Epoch of the report."""
    step: int
    """Optimizer steps taken since the start of the job."""
    epoch_end: bool
    """True at the end of an epoch; False when a window counted in steps closes within one."""
    world_size: int
    global_batch: int
    """Samples per step over all workers; 0 if unknown."""
    lr: float
    """Learning rate of the schedule in this epoch, before batch scaling and warm-up."""
    next_lr: float
    """Learning rate of the schedule in the next epoch, before batch scaling and warm-up."""
    local_steps: int = 1
    """Optimizer steps between two exchanges in the window: with more than one, its statistic is of
    the changes of the parameters by step instead of gradients.
    """
    window_steps: int = 0
    """Number of finite steps, or of finite rounds of local steps, in the open or just closed
    window.
    """
    statistic_by_layer: Mapping[str, float] | None = None
    """Norm of the mean raw gradient over the window, by layer name; None while the window is open.
    """
    statistic_kind: StatisticKind = "mean"
    """Kind of `statistic_by_layer`; `paper` is the norm of the sum of rank 0's gradients."""
    rms_by_layer: Mapping[str, float] | None = None
    """Root mean square of the norms of single workers' gradients in the window's finite steps.

    It exceeds the norm of the mean gradient by the noise; None if it was not measured.
    """
    agreement: float | None = None
    """Agreement of the workers over the window: 1 if the sums of their gradients, or of their
    changes by local steps, point the same way, 0 within noise if only noise is left; None if it was
    not measured, there is one worker, or workers have changed within the window.
    """
    sent_share_by_layer: Mapping[str, float] = field(default_factory=dict)
    """Fraction of each layer's energy (squared norm) that compression sent in the window, from 0 to
    1. Layers that were not compressed are missing; empty if nothing was measured.
    """
    cost_s_by_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Measured seconds that a layer adds to a step, by level, including `none`.

    They cover encoding, decoding, and communication that the backward pass does not hide. Only on
    rank 0; empty if they were not measured.
    """
    exchange_wait_s: float | None = None
    """Measured seconds for which a step waited for exchanges after its last gradient, on rank 0;
    None if they were not measured. In jobs with local steps and a policy that decides by measured
    times, they are those of the worker that waited least, because it waited for no other; the
    exchange that ends a round is divided by the round's steps.
    """
    step_s: float | None = None
    """Measured seconds of a step on rank 0, in the same jobs on the slowest worker; None if they
    were not measured.
    """
    beside_s: float | None = None
    """Measured seconds a step in which rank 0 encoded gradients beside its backward pass; None if
    they were not measured.
    """
    link: Mapping[str, float] = field(default_factory=dict)
    """Measured link on rank 0, as `latency_s` (seconds per message) and `bytes_per_s`; empty if it
    was not measured, without `bytes_per_s` if bytes took no measurable time.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A user's decision about the level of some layers, the global batch, the local steps, or a
    setting of the optimizer, for some epochs.
    """

    id: str
    level: str | int | float | Mapping[str, OptionValue]
    """Name of a level, its index (0 is the lightest), or options.

    Options are, for example, `{"rank": 2}` or `{"method": "none"}`. For the batch: `low`, `high` or
    a number of samples per step. For local steps: `low`, `high` or a number from 1 to the job's
    `high`; 1 exchanges gradients in every step. For a setting of the optimizer: its value, or
    `{"factor": 0.5}` for a factor of the schedule's learning rate.
    """
    target: OverrideTarget = "compression"
    layers: tuple[str, ...] = ("*",)
    """Globs over layer names; only an override of compression may name layers."""
    apply_at: Literal["next_step", "next_epoch"] | int = "next_step"
    """Start of the override; a number is an epoch. Within a round of local steps, the next step is
    the first one after the round.
    """
    until: int | None = None
    """First epoch in which the policy decides again; None for the rest of the job."""
    reason: str = ""
    number: int = 0
    """Order of arrival within the job; where overrides overlap, the largest number wins."""


DecisionCause = Literal["start", "window", "lr_drop", "skip", "hold", "override", "link", "warm_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Levels in force from a step on, and the reason."""

    epoch: int
    """First epoch for which it holds; the current one for a decision within an epoch."""
    step: int
    """First step for which it holds."""
    cause: DecisionCause
    """`hold`: no window ended; `skip`: in the window the batch or world size changed, or local
    steps began or ended; `link`: the exchange plan was fitted to the measured link; `warm_up`: the
    warm-up ended.
    """
    reason: str
    """Explanation in one sentence."""
    regime_by_layer: Mapping[str, Regime]
    """`critical` or `stable` by layer name."""
    level_by_layer: Mapping[str, Level]
    """Level in force of each layer whose level is decided; other layers are sent dense."""
    change_by_layer: Mapping[str, float | None]
    """Relative change of the statistic; null for a layer that was not compared."""
    override_by_layer: Mapping[str, str] = field(default_factory=dict)
    """ID of the override in force, for each layer that has one."""
    policy_level_by_layer: Mapping[str, Level] = field(default_factory=dict)
    """Level that the policy would choose, for each layer with an override."""
    batch_level: BatchLevel | None = None
    """Level of the global batch; null without batch levels, or with another size by override."""
    global_batch: int | None = None
    """Samples per step over all workers; null without batch levels."""
    batch_override: str | None = None
    """ID of the override of the batch in force; null if there is none."""
    policy_batch_level: BatchLevel | None = None
    """Level that the policy would choose for the batch; null without an override of it."""

    exchange_plan: tuple[int, ...] = ()
    """Number of DDP's buckets in each exchange of a step; empty before it is chosen by measurement,
    and if the settings fix it.
    """
    local_steps: int = 1
    """Optimizer steps that each worker takes between two exchanges; 1 exchanges gradients in every
    step.
    """
    local_steps_override: str | None = None
    """ID of the override of local steps in force; null if there is none."""
    policy_local_steps: int | None = None
    """Local steps without the override in force, 1 in the start of a run; null without one."""
    optimizer: Mapping[str, float] = field(default_factory=dict)
    """What overrides set of the optimizer: `lr`, or `lr_factor` for a factor of the schedule's
    rate, `weight_decay` and `clip_norm`; empty without one.
    """
    optimizer_overrides: Mapping[str, str] = field(default_factory=dict)
    """ID of the override in force of `lr`, `weight_decay` and `clip_norm`, where there is one."""

    @property
    def override_ids(self) -> tuple[str, ...]:
        """Sorted ids of all overrides in force."""
        whole_model = filter(None, (self.batch_override, self.local_steps_override))
        by_layer, optimizer = self.override_by_layer.values(), self.optimizer_overrides.values()
        return tuple(sorted({*by_layer, *optimizer, *whole_model}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Confirmation of one rank that it runs a plan, read from its hook after a switch."""

    rank: int
    """Rank of the worker."""
    step: int
    """First step that uses the plan."""
    digest: str
    """Digest of the plan that the rank runs."""


def plan_digest(
    level_by_layer: Mapping[str, Level],
    global_batch: int | None = None,
    exchange_plan: tuple[int, ...] = (),
    *,
    local_steps: int = 1,
    optimizer: Mapping[str, float] | None = None,
) -> str:
    """Return 16 hex digits that are equal on two ranks if and only if they run the same plan.

    `global_batch` is None if the batch is not decided.
    """
    plan: object = {
        name: [level.method, dict(level.options)] for name, level in level_by_layer.items()
    }
    if global_batch is not None:
        plan = [plan, global_batch]
    if exchange_plan:
        plan = {"plan": plan, "exchanges": exchange_plan}
    if local_steps > 1:
        plan = {"plan": plan, "local_steps": local_steps}
    if optimizer:
        plan = {"plan": plan, "optimizer": dict(optimizer)}
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_json(message: Report | Decision | Override | Level | LayerInfo | Ack) -> dict[str, object]:
    """Return a record as plain dicts, lists, numbers and strings."""
    return asdict(message)


def decision_from_json(data: Mapping[str, Any]) -> Decision:
    """Return the decision that `to_json` was given.

    Raises:
        KeyError: a field is missing.
        AttributeError, TypeError: a field has another type, or is unknown.
    """
    given = {field.name: data[field.name] for field in fields(Decision)}
    for name in ("level_by_layer", "policy_level_by_layer"):
        given[name] = {layer: Level(**level) for layer, level in data[name].items()}
    return Decision(**{**data, **given, "exchange_plan": tuple(data["exchange_plan"])})
