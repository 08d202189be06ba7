"""Settings of the library: frozen records that check their values; stdlib only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeGuard, get_args

from accordion.base.errors import ConfigError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import (
    BatchLevel,
    Level,
    OptimizerTarget,
    OptionValue,
    StatisticKind,
)
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.policies import POLICIES, check_policy

LevelOptions = Mapping[str, OptionValue]
BucketsPerExchange = int | Literal["all", "auto"]
WarmUpLevel = Literal["none", "half"]
_NAMED_LAYERS = 8
"""Number of layers that an error message lists by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Distance between two checks of the regime, in epochs or in steps."""

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.epochs, self.steps) if value is not None]
        if len(given) != 1 or not _is_whole(given[0]) or given[0] < 1:
            raise ConfigError(
                f"window has epochs={self.epochs!r} and steps={self.steps!r}; give exactly one of"
                " them, a whole number from 1 on"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorConfig:
    """Settings of the detector, which decides when a layer is critical."""

    threshold: float = 0.5
    """Relative change of the norm from which a layer is critical (eta in arXiv:2010.16248)."""
    window: Window | None = None
    """Distance between two checks (arXiv:2010.16248: 10 epochs, 5 for its LSTM).

    None uses 10 epochs, or 100 steps with `attach(..., step="optimizer")`, because nothing tells
    the session of an unchanged loop where an epoch ends.
    """
    lr_drop: float = 0.5
    """Fraction of the rate before; a learning rate that drops to it or below makes layers critical.

    A drop is sudden: the rate falls more than twice as far as between any two reports since the
    last drop. So linear, cosine and exponential decay are no drops, not even close to zero. The
    paper reacts to any drop, which is 1.0: with such a decay, no layer would ever reach the high
    level.
    """

    statistic: StatisticKind = "mean"
    """Statistic that the detector compares.

    `mean` compares the norms of the mean gradient in two consecutive windows. `paper` reproduces
    the code of arXiv:2010.16248, for comparison only: it compares the norm of the sum of rank 0's
    gradients over one epoch with the norm `window.epochs` epochs earlier, at the end of epochs 0,
    10, 20 and so on for a window of 10; a layer whose earlier norm is zero is critical. This
    statistic depends on the batch and world size. Three differences from the paper's code remain:
    the norms of layers with more than 1,024 values are estimated (standard error 2.2 %),
    learning-rate drops follow `lr_drop` and hold until a whole window has passed, and a window in
    which the batch or world size changed is not compared.
    """

    def __post_init__(self) -> None:
        if self.statistic not in get_args(StatisticKind):
            raise ConfigError(
                f"statistic is {self.statistic!r}; known are {', '.join(get_args(StatisticKind))}"
            )
        if not isinstance(self.window, Window | None):
            raise ConfigError(
                f"window is {self.window!r}; give Window(epochs=10) or Window(steps=500)"
            )
        for name, value in (("threshold", self.threshold), ("lr_drop", self.lr_drop)):
            if not isinstance(value, int | float):
                raise ConfigError(f"{name} is {value!r}; it must be a number, such as 0.5")
        if not self.threshold > 0.0:
            raise ConfigError(
                f"threshold is {self.threshold}; it must be above 0, the paper uses 0.5"
            )
        if not 0.0 <= self.lr_drop <= 1.0:
            raise ConfigError(
                f"lr_drop is {self.lr_drop}; it must be in [0, 1]: 0.5 means 'to half or less', 1"
                " means any drop"
            )
        if self.statistic == "paper" and self.window_in_force.epochs is None:
            raise ConfigError(
                "statistic 'paper' compares sums over whole epochs, but the window is"
                f" {self.window_in_force.steps} steps; give the window in epochs, or use statistic"
                " 'mean'"
            )

    @property
    def window_in_force(self) -> Window:
        """The window, 10 epochs if none is set."""
        return self.window or Window(epochs=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Two sizes of the global batch; the regime of the whole model selects one.

    arXiv:2010.16248 uses 512 and 4096.

    Raises:
        ConfigError: a size is not a whole number from 1 on, or `high` is not above `low`.
    """

    low: int
    """Samples per step over all workers while the model is critical."""
    high: int
    """Samples per step over all workers while the model is stable."""
    grow_only: bool = True
    """Whether the batch stays at `high` once it has grown, as in the paper."""

    def __post_init__(self) -> None:
        if not all(map(_is_whole, (self.low, self.high))) or not 1 <= self.low < self.high:
            raise ConfigError(
                f"batch has low={self.low!r} and high={self.high!r}; give two whole numbers of"
                " samples, at least 1, with high above low"
            )

    def size(self, level: BatchLevel) -> int:
        """Return the samples per step over all workers at a level."""
        return self.high if level == "high" else self.low

    def level(self, size: int) -> BatchLevel | None:
        """Return the level with this size; None without one."""
        return "low" if size == self.low else "high" if size == self.high else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """First steps of a run, in which all layers are at `none` or `half`.

    A low rank lags behind gradients that change fast, as they do at the start.
    `start_powerSGD_iter` of PyTorch's PowerSGD hook does the same.

    Raises:
        ConfigError: the number of steps is not a whole number from 1 on, or the level is unknown.
    """

    steps: int
    """Number of steps, skipped ones included, from the start of the run on."""
    level: WarmUpLevel = "none"
    """Level of all layers: `none` sends gradients as they are, `half` in 16 bits."""

    def __post_init__(self) -> None:
        if not _is_whole(self.steps) or self.steps < 1:
            raise ConfigError(
                f"warm_up has steps={self.steps!r}; give a whole number, at least 1, or"
                " warm_up=None to compress from the first step on"
            )
        if self.level not in get_args(WarmUpLevel):
            raise ConfigError(
                f"warm_up has level={self.level!r}; known are {', '.join(get_args(WarmUpLevel))}"
            )

    def describe(self) -> str:
        """Return a clause for the reasons of decisions during the warm-up."""
        return f"the warm-up holds all layers at {self.level} until step {self.steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """Method and levels of some layers.

    Raises:
        ConfigError: the method or an option is unknown, or a value is out of range.
    """

    method: str
    low: LevelOptions | None = None
    """Options of the light level; None uses the method's defaults."""
    high: LevelOptions | None = None
    """Options of the strong level; None uses the method's defaults."""

    def __post_init__(self) -> None:
        self.ladder()

    def ladder(self) -> tuple[Level, ...]:
        """Return the levels from the lightest to the strongest."""
        return ladder_of(self.method, self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `attach`.

    Raises:
        ConfigError: a method, policy or option is unknown, or a value is out of range.
    """

    method: str = "powersgd"
    low: LevelOptions | None = None
    """Options of the light level, for critical regimes; None uses the method's defaults."""
    high: LevelOptions | None = None
    """Options of the strong level, for stable regimes; None uses the method's defaults."""
    by_layer: Mapping[str, LayerPlan] = field(default_factory=dict)
    """Method and levels by glob over layer names; the first glob that matches a layer applies."""
    policy: str = "two_level"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    batch: BatchConfig | None = None
    """Batch levels; None leaves the global batch unchanged."""
    warm_up: WarmUp | None = None
    """First steps without compression; None compresses from the first step on."""
    local_steps: LocalSteps | None = None
    """Steps that each worker takes by itself between two exchanges; None exchanges gradients in
    every step. Only methods without residuals can be combined with it: `none`, `half` and `qsgd`.
    """
    buckets_per_exchange: BucketsPerExchange = "auto"
    """Number of DDP's buckets that are exchanged together; `all` exchanges all of a step at once.

    Buckets that share an exchange share its round trips, but wait for each other. `auto` measures
    the first steps on rank 0 and chooses the grouping whose last exchange ends first, again
    whenever the link changes; before that, and on GPUs, each bucket has an exchange of its own. On
    CPUs, no grouping changes a bit of the averages of fp32 and fp64 gradients.
    """
    seed: int = 0
    """Seed of sketches, random draws and warm starts; global generators are never used."""
    optimizer_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and largest `lr`, `weight_decay` and `clip_norm` that overrides may set, for a training
    loop that follows `Decision.optimizer`; without a range there are no such overrides.
    """

    def __post_init__(self) -> None:
        self.ladder()
        if not isinstance(self.policy_options, Mapping):
            raise ConfigError(
                f"policy_options is {self.policy_options!r}; give options by name, or {{}}"
            )
        check_policy(self.policy, self.policy_options)
        if not isinstance(self.detector, DetectorConfig):
            raise ConfigError(f"detector is {self.detector!r}; give DetectorConfig(...)")
        if not isinstance(self.batch, BatchConfig | None):
            raise ConfigError(f"batch is {self.batch!r}; give BatchConfig(low=..., high=...)")
        if not isinstance(self.warm_up, WarmUp | None):
            raise ConfigError(f"warm_up is {self.warm_up!r}; give WarmUp(steps=500)")
        by_layer = self.by_layer if isinstance(self.by_layer, Mapping) else {"": None}
        if not all(isinstance(plan, LayerPlan) for plan in by_layer.values()):
            raise ConfigError(f"by_layer is {self.by_layer!r}; give {{glob: LayerPlan(...)}}")
        buckets = self.buckets_per_exchange
        if not (_is_whole(buckets) and buckets >= 1) and buckets not in ("all", "auto"):
            raise ConfigError(
                f"buckets_per_exchange is {buckets!r}; give a whole number, at least 1, or 'all'"
                " for all buckets of a step, or 'auto' for what is measured to be fastest"
            )
        self._check_local_steps()
        self._check_optimizer_ranges()

    def _check_optimizer_ranges(self) -> None:
        known = get_args(OptimizerTarget)
        for name, bounds in self.optimizer_ranges.items():
            if name not in known:
                raise ConfigError(f"optimizer_ranges has {name!r}; known are {', '.join(known)}")
            if not _is_range(bounds):
                raise ConfigError(
                    f"optimizer_ranges has {name}={bounds!r}; give the least and the largest value,"
                    " such as (0.001, 0.1)"
                )

    def _check_local_steps(self) -> None:
        if not isinstance(self.local_steps, LocalSteps | None):
            raise ConfigError(
                f"local_steps is {self.local_steps!r}; give LocalSteps(low=4, high=32)"
            )
        if self.local_steps is None:
            return
        methods = dict.fromkeys([self.method, *(plan.method for plan in self.by_layer.values())])
        if late := [method for method in methods if COMPRESSORS[method].feedback]:
            raise ConfigError(
                f"local_steps cannot be combined with {', '.join(late)}: so few exchanges are too"
                " few for a residual to be sent; use qsgd, half or none"
            )
        if POLICIES[self.policy].uses_costs and self.buckets_per_exchange != "auto":
            raise ConfigError(
                f"policy {self.policy} chooses the length of rounds of local steps by measured"
                f" times, and with buckets_per_exchange={self.buckets_per_exchange!r} none are"
                " measured; leave it at 'auto', or choose another policy"
            )
        if POLICIES[self.policy].uses_costs and self.local_steps.overlap:
            raise ConfigError(
                f"policy {self.policy} chooses the length of rounds of local steps by how long"
                f" workers wait for exchanges, which local_steps.overlap={self.local_steps.overlap}"
                " hides; leave one of them out"
            )

    def for_unchanged_loop(self) -> Config:
        """Return these settings with a window of 100 steps if none is set.

        With statistic `paper`, which compares whole epochs, nothing is changed.
        """
        if self.detector.window is not None or self.detector.statistic == "paper":
            return self
        return replace(self, detector=replace(self.detector, window=Window(steps=100)))

    def is_warming_up(self, step: int) -> bool:
        """Return whether the warm-up holds in a step, counted from 0."""
        return self.warm_up is not None and step < self.warm_up.steps

    def ends_warm_up(self, step: int) -> bool:
        """Return whether a step is the first one after the warm-up."""
        return self.warm_up is not None and step == self.warm_up.steps

    def ends_start(self, step: int) -> bool:
        """Return whether a step is the first one after the start of a run with local steps."""
        return step > 0 and self.local_steps is not None and self.local_steps.start_steps == step

    def ladder(self) -> tuple[Level, ...]:
        """Return the levels of layers without an entry in `by_layer`, from the lightest on."""
        return ladder_of(self.method, self.low, self.high)

    def ladders(self, layers: Sequence[str]) -> dict[str, tuple[Level, ...]]:
        """Return the levels of each layer, from the lightest to the strongest.

        Raises:
            ConfigError: a glob of `by_layer` applies to no layer.
        """
        won = {
            layer: next((glob for glob in self.by_layer if fnmatchcase(layer, glob)), None)
            for layer in layers
        }
        for glob in self.by_layer:
            if glob not in won.values():
                raise ConfigError(_unused_glob_message(glob, layers))
        rest, ladders = self.ladder(), {glob: plan.ladder() for glob, plan in self.by_layer.items()}
        return {layer: rest if glob is None else ladders[glob] for layer, glob in won.items()}


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_range(bounds: object) -> bool:
    match bounds:
        case [int() | float() as least, int() | float() as most]:
            return 0.0 <= least <= most < math.inf
    return False


def _unused_glob_message(glob: str, layers: Sequence[str]) -> str:
    matching = [layer for layer in layers if fnmatchcase(layer, glob)]
    if matching:
        return (
            f"by_layer: {format_layers(matching)} of glob {glob!r} are taken by globs before it;"
            " put it before them"
        )
    return f"by_layer: no layer matches {glob!r}; layers are {format_layers(layers)}"


def format_layers(layers: Sequence[str]) -> str:
    """Return the names of the first layers and the number of others, for error messages."""
    rest = len(layers) - _NAMED_LAYERS
    return ", ".join(layers[:_NAMED_LAYERS]) + (f" and {rest} more" if rest > 0 else "")
