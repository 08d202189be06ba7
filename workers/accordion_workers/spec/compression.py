"""The part of a job's specification that says how gradients are compressed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from accordion.base.messages import OptionValue
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import Config, WarmUp, WarmUpLevel
from accordion_workers.spec.types import Strict, Whole

_LIBRARY = Config()
"""Settings of the library, whose defaults are those of a spec."""


def _check_buckets(value: object) -> object:
    """Check `buckets_per_exchange`."""
    is_whole = isinstance(value, int | float) and value >= 1 and value % 1 == 0
    if (not is_whole or value is True) and value not in ("all", "auto"):
        raise ValueError(f"{value!r} is not a number of buckets; give 1 or more, 'all' or 'auto'")
    return value


class WarmUpSpec(Strict):
    """The first steps of a job, in which gradients change fast and no layer is compressed."""

    steps: Whole = Field(ge=1, le=1_000_000_000)
    """Number of steps, from the start of the job on."""
    level: WarmUpLevel = "none"
    """Level of all layers in these steps: `none` sends gradients as they are, `half` in 16 bits."""


class CompressionSpec(Strict):
    """The compression method and the options of its two levels."""

    method: str = Field(default=_LIBRARY.method, json_schema_extra={"enum": list(COMPRESSORS)})
    """Compression method; `GET /api/v1/methods` lists them with their options."""
    low: dict[str, OptionValue] | None = None
    """Options of the light level, for critical regimes, such as `{"rank": 4}`. Null: the method's
    defaults.
    """
    high: dict[str, OptionValue] | None = None
    """Options of the strong level, for stable regimes, such as `{"rank": 1}`. Null: the method's
    defaults.
    """
    buckets_per_exchange: Annotated[
        Annotated[Whole, Field(ge=1)] | Literal["all", "auto"],
        BeforeValidator(_check_buckets),
    ] = _LIBRARY.buckets_per_exchange
    """Number of DDP's buckets (about 25 MB of gradients each, the first one smaller) that are
    exchanged together; `all`: all buckets of a step. More save round trips on a link with latency;
    fewer let the backward pass hide more of the exchange. `auto` measures the job's own steps and
    chooses what is fastest, again whenever the link changes.
    """

    warm_up: WarmUpSpec | None = None
    """Steps at the start of training that are compressed less. Null: none."""

    def warm_up_config(self) -> WarmUp | None:
        """Return the library's setting of the warm-up."""
        warm_up = self.warm_up
        return None if warm_up is None else WarmUp(steps=warm_up.steps, level=warm_up.level)

    @model_validator(mode="after")
    def _check_method(self) -> CompressionSpec:
        low, high = ladder_of(self.method, self.low, self.high)
        object.__setattr__(self, "low", dict(low.options))
        object.__setattr__(self, "high", dict(high.options))
        return self


__all__ = ["CompressionSpec", "WarmUpSpec"]
