"""Settings of local steps: how many each worker takes before the workers exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from accordion.base.errors import ConfigError

OuterStep = Literal["average", "nesterov"]
_ROUNDING = 1e-9
"""Slack in the length of a round: as floats, 0.1 / (0.1 * 0.1) is a little below 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """Optimizer steps that each worker takes by itself, before the workers exchange by how much
    their parameters changed.

    A round of local steps has `low` steps while the learning rate is at its peak, and
    low * (peak / rate) ** power, at most `high`, when the rate has fallen. A power of 2 is QSR
    (arXiv:2310.14423). Equal `low` and `high` fix the length. Policy `cost_aware` makes rounds
    shorter where the link allows it. A job file may have a budget of bytes in place of `low`; the
    rates of a script are not known before, so it gives `low`.

    They work in loops that call `session.step()`, in unchanged ones (`step` of `attach`), and with
    Accelerate, Transformers and Lightning; not with a GradScaler.

    Raises:
        ConfigError: a number is not whole or out of range, or `high` is below `low`, or `overlap`
            above it.
    """

    low: int
    """Steps of a round at the peak of the learning rate."""
    high: int
    """Most steps of a round."""
    start_steps: int = 0
    """First steps of a run, in which gradients are exchanged in every step: training is critical
    there, and a small transformer lost 0.05 of loss without a start.
    """
    power: float = 1.0
    """Power of the fall of the learning rate by which rounds become longer."""
    outer: OuterStep = "average"
    """What becomes of the mean of the workers' changes: `average` adds it to the parameters,
    `nesterov` takes a step of SGD with momentum along it (DiLoCo, arXiv:2311.08105). Where both
    were measured with equal bytes, `average` learned more, each at its best learning rate.
    """
    overlap: int = 0
    """Steps of the next round during which the exchange of a round may still run; the workers
    change to its mean after exactly as many. 0 lets all wait at the end of a round. Accuracy may
    fall with each of them, so take as few as the link needs. Not on GPUs.
    """

    def __post_init__(self) -> None:
        whole = all(type(one) is int for one in (self.low, self.high, self.start_steps))
        if not whole or not 1 <= self.low <= self.high or self.start_steps < 0:
            raise ConfigError(
                f"local_steps has low={self.low!r}, high={self.high!r} and"
                f" start_steps={self.start_steps!r}; give whole numbers, low at least 1, high at"
                " least low, start_steps at least 0"
            )
        if type(self.overlap) is not int or not 0 <= self.overlap <= self.low:
            raise ConfigError(
                f"local_steps has low={self.low!r} and overlap={self.overlap!r}; give a whole"
                " number of steps from 0 to low: an exchange ends within the next round"
            )
        if not isinstance(self.power, int | float) or not 0.0 <= self.power <= 4.0:
            raise ConfigError(
                f"local_steps has power={self.power!r}; give a number from 0 to 4: 1 makes rounds"
                " longer as the rate falls, 2 faster than that, 0 keeps them at low"
            )
        if self.outer not in get_args(OuterStep):
            raise ConfigError(
                f"local_steps has outer={self.outer!r}; known are {', '.join(get_args(OuterStep))}"
            )

    @property
    def has_start(self) -> bool:
        """Whether a run begins with exchanges in every step."""
        return self.start_steps != 0

    def length(self, *, step: int, fall: float) -> int:
        """Return the steps of a round from `step` on, after the learning rate fell to 1 / `fall` of
        its peak.
        """
        if step < self.start_steps:
            return 1
        try:
            length = self.low * max(1.0, fall) ** self.power * (1.0 + _ROUNDING)
        except OverflowError:
            return self.high
        return min(self.high, int(min(length, self.high)))
