"""Settings of the library: frozen, checked where they are born; stdlib only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accordion.compressors import ladder_of
from accordion.errors import ConfigError
from accordion.messages import Level, OptionValue
from accordion.policies import check_policy

LevelOptions = Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Distance between two checks of the regime: exactly one of the two is given."""

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.epochs, self.steps) if value is not None]
        if len(given) != 1 or given[0] < 1:
            raise ConfigError(
                f"window has epochs={self.epochs} and steps={self.steps}; give exactly one of them, at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorConfig:
    """When a layer counts as critical."""

    threshold: float = 0.5
    """Relative change of a layer's gradient norm from which it is critical (eta; arXiv:2010.16248)."""
    window: Window = field(default_factory=lambda: Window(epochs=10))
    """Distance between two checks (arXiv:2010.16248: 10 epochs, 5 for its LSTM)."""
    lr_drop: float = 0.5
    """The regime is critical when the next rate is at most this part of the rate at the last check.

    The paper reacts to any drop; under cosine or linear decay that is every epoch, and nothing is ever compressed hard.
    """

    def __post_init__(self) -> None:
        if not self.threshold > 0.0:
            raise ConfigError(f"threshold is {self.threshold}; it must be above 0, the paper uses 0.5")
        if not 0.0 <= self.lr_drop < 1.0:
            raise ConfigError(f"lr_drop is {self.lr_drop}; it must be in [0, 1), 0.5 means 'to half or less'")


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
    policy: str = "two_level"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    seed: int = 0
    """Seeds sketches and warm starts; the global generators are never touched."""

    def __post_init__(self) -> None:
        self.ladder()
        check_policy(self.policy, self.policy_options, [level.name for level in self.ladder()])

    def ladder(self) -> tuple[Level, ...]:
        """The rungs from the lightest to the strongest compression."""
        return ladder_of(self.method, self.low, self.high)
