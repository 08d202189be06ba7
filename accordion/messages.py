"""What the parts tell each other: frozen records, stdlib only, JSON in and out through `to_json`
and `from_json`.

Epochs and steps are counted from 0. An interval of epochs is half open: `until=30` means epochs
before 30.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

Regime = Literal["critical", "stable"]
BatchLevel = Literal["low", "high"]
"""`low`: the small global batch, for critical regimes; `high`: the large one."""
StatisticKind = Literal["mean", "paper"]
OptionValue = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """One parameter tensor, as the controller has to know it."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How hard a layer is compressed: a named rung of a ladder, with the method and its options."""

    name: str
    """`low`, `high`, another rung's name, or for a level given by hand a text such as `rank=2`."""
    method: str
    """Compression method."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of the method by name, such as `{"rank": 2}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a group of workers learned since the last decision; the same on every rank."""

    epoch: int
    """Epoch in which the report was made."""
    step: int
    """Optimizer steps taken since the start of the job."""
    epoch_end: bool
    """True at the end of an epoch, False where a window counted in steps closes inside one."""
    world_size: int
    global_batch: int
    """Samples a step over all workers; 0 where the caller did not say."""
    lr: float
    """Learning rate of the schedule in this epoch, before batch scaling and warm-up."""
    next_lr: float
    """The schedule's rate of the next epoch, likewise."""
    window_steps: int = 0
    """Finite steps that the open or just closed window holds."""
    statistic_by_layer: Mapping[str, float] | None = None
    """Norm of the mean raw gradient over the window, by layer name; None while the window is open.
    """
    statistic_kind: StatisticKind = "mean"
    """What `statistic_by_layer` holds: `paper` is the norm of the sum of rank 0's gradients
    instead.
    """
    rms_by_layer: Mapping[str, float] | None = None
    """Root of the mean, over the window's finite steps and the workers, of the squared norm of one
    worker's gradient of one step. Never below the norm of the mean: what it exceeds it by is noise.
    None where nobody measured it.
    """
    cost_s_by_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Measured seconds that a layer adds to a step, by rung, and under `none` as it travels
    uncompressed: encoding, decoding, and what the backward pass does not hide of its communication.
    Empty where nobody measured it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A person's decision about the compression of some layers, or about the global batch, for some
    epochs.
    """

    id: str
    level: str | int | Mapping[str, OptionValue]
    """A rung's name, its index on the ladder (0 = lightest), or options (`{"rank": 2}`, `{"method":
    "none"}`).

    Of the batch: `low`, `high`, or a number of samples a step.
    """
    target: Literal["compression", "batch"] = "compression"
    layers: tuple[str, ...] = ("*",)
    """Globs over layer names; the batch is one for the whole model, and takes none."""
    apply_at: Literal["next_step", "next_epoch"] | int = "next_step"
    """When it starts; a number is an epoch."""
    until: int | None = None
    """First epoch that is the policy's again; None holds for the rest of the job."""
    reason: str = ""
    number: int = 0
    """Order of arrival within the job: where two overlap, the larger number wins, layer by layer or
    for the batch.
    """


DecisionCause = Literal["start", "window", "lr_drop", "skip", "hold", "override"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is in force from `step` on, and why."""

    epoch: int
    """First epoch it holds for; for a decision inside an epoch, that epoch."""
    step: int
    """First step it holds for."""
    cause: DecisionCause
    """`hold`: nothing was due; `skip`: the window after a change of batch or world size."""
    reason: str
    """One sentence for people."""
    regime_by_layer: Mapping[str, Regime]
    """`critical` or `stable` by layer name."""
    level_by_layer: Mapping[str, Level]
    """Level in force by name, for layers of two or more dimensions; all other layers travel dense.
    """
    change_by_layer: Mapping[str, float | None]
    """Relative change of the statistic that was compared with the threshold; None where nothing was
    compared.
    """
    override_by_layer: Mapping[str, str] = field(default_factory=dict)
    """Id of the override in force, for the layers that a person decided."""
    policy_level_by_layer: Mapping[str, Level] = field(default_factory=dict)
    """What the policy would pick, for the same layers; for all others that is the level in force.
    """
    batch_level: BatchLevel | None = None
    """Level of the global batch; None where the settings leave it alone, or a person gave it
    another size.
    """
    global_batch: int | None = None
    """Samples a step over all workers; None where the settings leave the batch alone."""
    batch_override: str | None = None
    """Id of the override in force for the batch."""
    policy_batch_level: BatchLevel | None = None
    """What the policy would pick for the batch; None where that is the level in force."""

    @property
    def override_ids(self) -> tuple[str, ...]:
        """Of all overrides in force, sorted."""
        batch = {self.batch_override} if self.batch_override else set[str]()
        return tuple(sorted({*self.override_by_layer.values(), *batch}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Confirmation of one rank that it runs a plan, read from its hook after a switch."""

    rank: int
    """Rank of the worker."""
    step: int
    """First step that uses the plan."""
    digest: str
    """Digest of the plan that the rank runs."""


def plan_digest(level_by_layer: Mapping[str, Level], global_batch: int | None = None) -> str:
    """Sixteen hex digits that two ranks share exactly when they run the same plan; None where no
    batch is decided.
    """
    plan = {name: [level.method, dict(level.options)] for name, level in level_by_layer.items()}
    text = json.dumps(
        plan if global_batch is None else [plan, global_batch],
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_json(message: Report | Decision | Override | Level | LayerInfo | Ack) -> dict[str, object]:
    """The message as plain dicts, lists, numbers and texts."""
    return asdict(message)


def decision_from_json(data: Mapping[str, object]) -> Decision:
    """Inverse of `to_json` for a decision.

    Raises:
        KeyError: a field is missing.
    """
    fields = dict(data)
    for name in ("level_by_layer", "policy_level_by_layer"):
        levels = fields[name] if name == "level_by_layer" else fields.get(name)
        if isinstance(levels, Mapping):
            fields[name] = {
                layer: level if isinstance(level, Level) else Level(**level)
                for layer, level in levels.items()
            }
    return Decision(**fields)  # type: ignore[arg-type]
