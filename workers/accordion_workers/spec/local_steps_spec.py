"""The part of a job's specification that says how often workers exchange."""

from __future__ import annotations

from pydantic import Field, model_validator

from accordion.base.local_steps import LocalSteps, OuterStep
from accordion.policies import POLICIES
from accordion_workers.spec.types import Number, Strict, Whole
from accordion_workers.tasks import SCRIPT

_MOST = 1_000_000
_LIBRARY = LocalSteps(low=1, high=1)
"""Settings of the library, whose defaults are those of a spec."""
BUDGET_HIGH = 8
"""Most steps of a round in a job with a budget, as a multiple of `low`."""


class LocalStepsSpec(Strict):
    """Steps that each worker takes by itself before the workers exchange by how much their
    parameters changed.

    While the learning rate is at its peak, a round has `low` steps; as the rate falls, low * (peak
    / rate) ^ power, at most `high`. Rounds end with the epoch. Only for methods without residuals:
    `qsgd`, `half` and `none`.
    """

    low: Whole | None = Field(default=None, ge=1, le=_MOST)
    """Steps of a round at the peak of the learning rate. Null: `budget` is given."""
    high: Whole | None = Field(default=None, ge=1, le=_MOST)
    """Most steps of a round. Null: as `low`, which fixes the length; with `budget`, 8 times the
    `low` that follows from it.
    """
    budget: Number | None = Field(default=None, ge=1, le=_MOST)
    """How many times fewer bytes each worker is to send over the whole job than without compression
    in every step, in place of `low`. `low` becomes the shortest rounds that keep to it, as planned
    for `workers.max` workers when they start. Null: `low` is given.
    """
    start_steps: Whole = Field(default=_LIBRARY.start_steps, ge=0, le=1_000_000_000)
    """First steps of the job, in which gradients are exchanged in every step. A small transformer
    gains from 10 to 30 % of its steps, an LSTM nothing.
    """
    power: float = Field(default=_LIBRARY.power, ge=0.0, le=4.0)
    """Power of the fall of the learning rate by which rounds become longer."""
    outer: OuterStep = _LIBRARY.outer
    """What becomes of the mean of the workers' changes: `average` adds it to the parameters,
    `nesterov` takes a step of SGD with momentum along it, which learned less wherever both were
    measured with equal bytes.
    """
    overlap: Whole = Field(default=_LIBRARY.overlap, ge=0, le=_MOST)
    """Steps of the next round during which the exchange of a round may still run, at most `low`,
    which with a budget is at least as many; the workers change to its mean after exactly as many.
    0: all wait at the end of a round. Not with `workers.gpus`.
    """

    @model_validator(mode="after")
    def _check(self) -> LocalStepsSpec:
        if (self.low is None) == (self.budget is None):
            raise ValueError(
                f"local_steps has low={self.low} and budget={self.budget}; give one of them: the"
                " steps of a round, or how many times fewer bytes to send"
            )
        if self.budget is not None and self.overlap > (self.high or _MOST):
            raise ValueError(
                f"local_steps has high={self.high} and overlap={self.overlap}; an exchange ends"
                " within the next round, so give a high of at least overlap, or less overlap"
            )
        self.config()
        return self

    def check_budget(self, *, task: str, policy: str, has_batch: bool) -> None:
        """Check that what the job sends is known well enough before it runs, if it has a budget.

        Raises:
            ValueError: it is not.
        """
        if self.budget is None:
            return
        unknown = {
            "the learning rate of a script is its own": task == SCRIPT,
            "batch grows when the job decides it": has_batch,
            f"policy {policy} may send gradients uncompressed": POLICIES[policy].uses_costs,
        }
        for reason, holds in unknown.items():
            if holds:
                raise ValueError(
                    f"local_steps.budget needs to know before what the job sends, and {reason};"
                    " give local_steps.low, or leave that out"
                )

    def resolve(self, low: int) -> LocalStepsSpec:
        """Return the local steps with this `low` in place of the budget, or `overlap` if that is
        more.
        """
        low = max(low, self.overlap)
        high = min(BUDGET_HIGH * low, _MOST) if self.high is None else self.high
        return self.model_copy(update={"low": low, "high": high, "budget": None})

    def config(self) -> LocalSteps:
        """Return the library's settings; with a budget, the widest range that it may turn into.

        Raises:
            ConfigError: `high` is below `low`, or `overlap` above it.
        """
        if self.low is None:
            low, high = max(1, self.overlap), _MOST if self.high is None else self.high
        else:
            low, high = self.low, self.low if self.high is None else self.high
        return LocalSteps(
            low=low,
            high=high,
            start_steps=self.start_steps,
            power=self.power,
            outer=self.outer,
            overlap=self.overlap,
        )


__all__ = ["LocalStepsSpec"]
