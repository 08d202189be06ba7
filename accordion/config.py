"""Settings of the library: frozen, checked where they are born; stdlib only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import get_args

from accordion.compressors import ladder_of
from accordion.errors import ConfigError
from accordion.messages import BatchLevel, Level, OptionValue, StatisticKind
from accordion.policies import check_policy

LevelOptions = Mapping[str, OptionValue]
_NAMED_LAYERS = 8
"""Layers that an error sentence lists before it only counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Distance between two checks of the regime: exactly one of the two is given."""

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.epochs, self.steps) if value is not None]
        if len(given) != 1 or given[0] < 1:
            raise ConfigError(
                f"window has epochs={self.epochs} and steps={self.steps}; give exactly one of them,"
                " at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorConfig:
    """When a layer counts as critical."""

    threshold: float = 0.5
    """Relative change of a layer's gradient norm from which it is critical (eta; arXiv:2010.16248).
    """
    window: Window = field(default_factory=lambda: Window(epochs=10))
    """Distance between two checks (arXiv:2010.16248: 10 epochs, 5 for its LSTM)."""
    lr_drop: float = 0.5
    """Fraction of the learning rate at the last check; a next rate at or below it makes layers
    critical.

    The next rate must also be lower than the rate at the last check. The paper reacts to any drop,
    which is 1.0; cosine and linear decay drop the rate every epoch, so no layer would ever reach
    the high level.
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
        if not self.threshold > 0.0:
            raise ConfigError(
                f"threshold is {self.threshold}; it must be above 0, the paper uses 0.5"
            )
        if not 0.0 <= self.lr_drop <= 1.0:
            raise ConfigError(
                f"lr_drop is {self.lr_drop}; it must be in [0, 1]: 0.5 means 'to half or less', 1"
                " means any drop"
            )
        if self.statistic == "paper" and self.window.epochs is None:
            raise ConfigError(
                "statistic 'paper' compares sums over whole epochs, but the window is"
                f" {self.window.steps} steps; give the window in epochs, or use statistic 'mean'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Two sizes of the global batch, chosen by the regime of the whole model (arXiv:2010.16248: 512
    and 4096).

    Raises:
        ConfigError: a size is no whole number from 1 on, or the large one is not above the small
            one.
    """

    low: int
    """Samples a step over all workers in critical regimes."""
    high: int
    """Likewise elsewhere."""
    grow_only: bool = True
    """Once large, the batch stays large, as in the paper."""

    def __post_init__(self) -> None:
        whole = all(
            isinstance(size, int) and not isinstance(size, bool) for size in (self.low, self.high)
        )
        if not whole or not 1 <= self.low < self.high:
            raise ConfigError(
                f"batch has low={self.low!r} and high={self.high!r}; give two whole numbers of"
                " samples, at least 1, with high above low"
            )

    def size(self, level: BatchLevel) -> int:
        """Samples a step over all workers."""
        return self.high if level == "high" else self.low

    def level(self, size: int) -> BatchLevel | None:
        """The level of this size; None where it is neither."""
        return "low" if size == self.low else "high" if size == self.high else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """Method and levels of some layers, where they differ from the rest.

    Raises:
        ConfigError: an unknown method or option, or one out of range.
    """

    method: str
    low: LevelOptions | None = None
    """Options of the light level; None takes the method's own. Likewise `high`, the strong one."""
    high: LevelOptions | None = None

    def __post_init__(self) -> None:
        self.ladder()

    def ladder(self) -> tuple[Level, ...]:
        """The rungs from the lightest to the strongest compression, named as everywhere else."""
        return ladder_of(self.method, self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that `attach` has to know.

    Raises:
        ConfigError: an unknown method, policy or option, or one out of range.
    """

    method: str = "powersgd"
    low: LevelOptions | None = None
    """Options of the light level, used in critical regimes; None takes the method's own."""
    high: LevelOptions | None = None
    """Options of the strong level; None takes the method's own."""
    by_layer: Mapping[str, LayerPlan] = field(default_factory=dict)
    """Glob over layer names to method and levels of the layers it matches; the first that matches a
    layer wins.
    """
    policy: str = "two_level"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    batch: BatchConfig | None = None
    """None leaves the global batch alone."""
    seed: int = 0
    """Seeds sketches and warm starts; the global generators are never touched."""

    def __post_init__(self) -> None:
        self.ladder()
        check_policy(self.policy, self.policy_options)

    def ladder(self) -> tuple[Level, ...]:
        """The rungs from the lightest to the strongest compression, of layers that `by_layer` does
        not name.
        """
        return ladder_of(self.method, self.low, self.high)

    def ladders(self, layers: Sequence[str]) -> dict[str, tuple[Level, ...]]:
        """The rungs of each layer.

        Raises:
            ConfigError: a glob of `by_layer` wins no layer.
        """
        won = {
            layer: next((glob for glob in self.by_layer if fnmatchcase(layer, glob)), None)
            for layer in layers
        }
        for glob in self.by_layer:
            if glob not in won.values():
                raise ConfigError(_idle_sentence(glob, layers))
        rest, ladders = self.ladder(), {glob: plan.ladder() for glob, plan in self.by_layer.items()}
        return {layer: rest if glob is None else ladders[glob] for layer, glob in won.items()}


def _idle_sentence(glob: str, layers: Sequence[str]) -> str:
    matching = [layer for layer in layers if fnmatchcase(layer, glob)]
    if matching:
        return (
            f"by_layer: {format_layers(matching)} of glob {glob!r} are taken by globs before it;"
            " put it before them"
        )
    return f"by_layer: no layer matches {glob!r}; layers are {format_layers(layers)}"


def format_layers(layers: Sequence[str]) -> str:
    """The first layers by name, and how many more there are; for error sentences."""
    rest = len(layers) - _NAMED_LAYERS
    return ", ".join(layers[:_NAMED_LAYERS]) + (f" and {rest} more" if rest > 0 else "")
