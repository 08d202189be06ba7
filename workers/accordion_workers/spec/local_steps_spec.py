"""The part of a job's specification that says how often workers exchange."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from accordion.base.local_steps import LocalSteps, OuterStep
from accordion_workers.spec.types import Strict, Whole

_MOST = 1_000_000
_LIBRARY = LocalSteps(low=1, high=1)
"""Settings of the library, whose defaults are those of a spec."""


class LocalStepsSpec(Strict):
    """Steps that each worker takes by itself before the workers exchange by how much their
    parameters changed.

    While the learning rate is at its peak, a round has `low` steps; as the rate falls, low * (peak
    / rate) ^ power, at most `high`. Rounds end with the epoch. Only for methods without residuals:
    `qsgd`, `half` and `none`.
    """

    low: Whole = Field(ge=1, le=_MOST)
    """Steps of a round at the peak of the learning rate."""
    high: Whole | None = Field(default=None, ge=1, le=_MOST)
    """Most steps of a round. Null: as `low`, which fixes the length."""
    start_steps: Annotated[Whole, Field(ge=0, le=1_000_000_000)] | Literal["auto"] = (
        _LIBRARY.start_steps
    )
    """First steps of the job, in which gradients are exchanged in every step. Language models need
    10 to 30 % of their steps, small image models none. `auto` measures: once the workers' gradients
    agree on little in two windows in a row (`agreement` below 0.1), the start takes as many steps
    again. It needs `policy.window` in steps, about a fiftieth of the job's.
    """
    power: float = Field(default=_LIBRARY.power, ge=0.0, le=4.0)
    """Power of the fall of the learning rate by which rounds become longer."""
    outer: OuterStep = _LIBRARY.outer
    """What becomes of the mean of the workers' changes: `average` adds it to the parameters,
    `nesterov` takes a step of SGD with momentum along it. `auto` is `average` for SGD, and for
    other optimizers without a start; otherwise `nesterov`.
    """
    overlap: Whole = Field(default=_LIBRARY.overlap, ge=0, le=_MOST)
    """Steps of the next round during which the exchange of a round may still run, at most `low`;
    the workers change to its mean after exactly as many. 0: all wait at the end of a round. Not
    with `workers.gpus`.
    """

    @model_validator(mode="after")
    def _check(self) -> LocalStepsSpec:
        self.config()
        return self

    def config(self) -> LocalSteps:
        """Return the library's settings.

        Raises:
            ConfigError: `high` is below `low`, or `overlap` above it.
        """
        return LocalSteps(
            low=self.low,
            high=self.low if self.high is None else self.high,
            start_steps=self.start_steps,
            power=self.power,
            outer=self.outer,
            overlap=self.overlap,
        )


__all__ = ["LocalStepsSpec"]
