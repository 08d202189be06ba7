"""The table of compressors; loads no torch, so that a server can list and check them.

To add one: a file with a flow (see `wire.py`), a row here, a test. The laws in `tests/` run over
all rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from accordion.base.errors import ConfigError
from accordion.base.messages import Level, OptionValue
from accordion.base.options import Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """One compression method."""

    summary: str
    feedback: bool
    """Whether the compression error is kept as a residual and sent later."""
    flow: str
    """`module:function` of the flow, imported at first use."""
    exact: bool = False
    """Whether nothing is left out; a method with neither this nor `feedback` loses its error."""
    low: Mapping[str, OptionValue] = field(default_factory=dict)
    """Default options of the light level."""
    high: Mapping[str, OptionValue] = field(default_factory=dict)
    """Default options of the strong level."""
    options: Mapping[str, Option] = field(default_factory=dict)
    warm_start: str | None = None
    """`module:function` that returns a layer's state from step to step, resized for a level."""
    raw_gradient: bool = False
    """Whether the flow also gets the gradient without its residual; needs `feedback`."""
    alone: bool = False
    """Whether each layer has a flow of its own.

    Set it for methods whose draws or sums depend on the other layers of a stack: stacks follow
    DDP's buckets, which may differ between a first step and later ones, so a resumed run would not
    be bit-equal to an uninterrupted one.
    """
    matrices: bool = False
    """Whether the flow gets layers as matrices, `owed_BNM`, and not flattened, `owed_BL`."""


_DENSITY = Option(
    default=0.01,
    minimum=1e-6,
    maximum=1.0,
    lighter="more",
    help="fraction of the entries that is sent",
)

COMPRESSORS: Mapping[str, Compressor] = {
    "none": Compressor(
        summary="no compression; sends an old residual once",
        feedback=False,
        exact=True,
        flow="accordion.compressors.none:none_flow",
    ),
    "half": Compressor(
        summary="16 bits per value",
        feedback=False,
        flow="accordion.compressors.half:half_flow",
        options={
            "dtype": Option(default="fp16", choices=("fp16", "bf16"), help="format on the wire")
        },
    ),
    "powersgd": Compressor(
        summary="low-rank approximation with warm start (arXiv:1905.13727)",
        feedback=True,
        flow="accordion.compressors.powersgd:powersgd_flow",
        options={
            "rank": Option(
                default=4, minimum=1, maximum=1024, lighter="more", help="columns of the factors"
            ),
            "factors": Option(
                default="both",
                choices=("both", "alternating"),
                help=(
                    "factors sent in a step; alternating halves the bytes and saves a round, but"
                    " follows the gradient more slowly"
                ),
            ),
            "refresh_every": Option(
                default=0,
                minimum=0,
                maximum=1_000_000,
                help=(
                    "steps between two dense exchanges whose singular vectors become the factors"
                    " (PowerSGD+, arXiv:2509.11254); 0: never"
                ),
            ),
        },
        low={"rank": 4},
        high={"rank": 1},
        warm_start="accordion.compressors.powersgd:warm_factors",
        matrices=True,
    ),
    "topk": Compressor(
        summary="the largest entries by magnitude, with their positions",
        feedback=True,
        flow="accordion.compressors.topk:topk_flow",
        options={
            "density": _DENSITY,
            "values": Option(
                default="fp32", choices=("fp32", "fp16"), help="format of the values on the wire"
            ),
            "select": Option(
                default="sampled",
                choices=("sampled", "exact"),
                help=(
                    "how to find the largest entries: by a threshold estimated from a sample, or"
                    " among all entries at once"
                ),
            ),
        },
        low={"density": 0.1},
        high={"density": 0.01},
    ),
    "randomk": Compressor(
        summary="random entries, at the same positions on all workers (arXiv:1809.07599)",
        feedback=True,
        flow="accordion.compressors.randomk:randomk_flow",
        alone=True,
        options={"density": _DENSITY},
        low={"density": 0.1},
        high={"density": 0.01},
    ),
    "signsgd": Compressor(
        summary="one bit per value and one scale per layer (arXiv:1802.04434, arXiv:1901.09847)",
        feedback=True,
        flow="accordion.compressors.signsgd:signsgd_flow",
    ),
    "qsgd": Compressor(
        summary=("a few bits per value by unbiased stochastic rounding (arXiv:1610.02132)"),
        feedback=False,
        flow="accordion.compressors.qsgd:qsgd_flow",
        alone=True,
        options={
            "bits": Option(
                default=8,
                minimum=2,
                maximum=8,
                lighter="more",
                help="bits per value, including the sign",
            ),
            "bucket": Option(
                default=512,
                minimum=8,
                maximum=1 << 15,
                lighter="less",
                help="number of values that share a norm",
            ),
        },
        low={"bits": 8},
        high={"bits": 4},
    ),
    "adacomp": Compressor(
        summary=(
            "the entries of each bin that the newest gradient makes large, as signs with one scale"
            " (arXiv:1712.02679)"
        ),
        feedback=True,
        flow="accordion.compressors.adacomp:adacomp_flow",
        alone=True,
        raw_gradient=True,
        options={
            "bin_conv": Option(
                default=50,
                minimum=2,
                maximum=16382,
                lighter="less",
                help=(
                    "entries per bin of a convolution; a sent entry takes 8 bits up to 62,"
                    " and 16 bits above"
                ),
            ),
            "bin_other": Option(
                default=500,
                minimum=2,
                maximum=16382,
                lighter="less",
                help="entries per bin of all other layers",
            ),
        },
        low={"bin_conv": 50, "bin_other": 500},
        high={"bin_conv": 500, "bin_other": 2000},
    ),
}


LEVEL_NAMES = ("low", "high")
"""Names of every ladder's levels, from the lightest to the strongest compression."""
_LIGHTER = {"more": "larger", "less": "smaller"}
"""How the option's value at the light level compares, by the direction that compresses less."""


def ladder_of(
    method: str,
    low: Mapping[str, OptionValue] | None = None,
    high: Mapping[str, OptionValue] | None = None,
) -> tuple[Level, ...]:
    """Return a method's levels from the lightest to the strongest, by default with its own options.

    Raises:
        ConfigError: an unknown method or option, a value out of range, or a light level that
            compresses harder.
    """
    row = _find_compressor(method)
    light = level_of(
        method, {**row.low, **_check_mapping(low, f"{method} level 'low'")}, name="low"
    )
    strong = level_of(
        method, {**row.high, **_check_mapping(high, f"{method} level 'high'")}, name="high"
    )
    for name, option in row.options.items():
        if option.lighter is None:
            continue
        rise = float(strong.options[name]) - float(light.options[name])
        if rise > 0 if option.lighter == "more" else rise < 0:
            raise ConfigError(
                f"{method}: {name} is {light.options[name]} at low and {strong.options[name]} at"
                " high, so that low would compress harder; give both, low with the"
                f" {_LIGHTER[option.lighter]}"
            )
    return (light, strong)


def _check_mapping(
    options: Mapping[str, OptionValue] | None, where: str
) -> Mapping[str, OptionValue]:
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"{where} is {options!r}; give its options by name")
    return options or {}


def level_of(method: str, options: Mapping[str, OptionValue], *, name: str) -> Level:
    """Return a level with checked options and all defaults filled in.

    Raises:
        ConfigError: an unknown method or option, or a value out of range.
    """
    checked = check_options(options, _find_compressor(method).options, f"{method} level {name!r}")
    return Level(name=name, method=method, options=checked)


def _find_compressor(method: str) -> Compressor:
    if method not in COMPRESSORS:
        raise ConfigError(
            f"unknown compression method {method!r}; known are {', '.join(COMPRESSORS)}"
        )
    return COMPRESSORS[method]


@cache
def load_function(path: str) -> Callable[..., Any]:
    """Return the function that a table names as `module:function`."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


__all__ = ["COMPRESSORS", "LEVEL_NAMES", "Compressor", "ladder_of", "level_of", "load_function"]
