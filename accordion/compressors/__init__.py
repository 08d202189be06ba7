"""The table of compressors; loads no torch, so that a server can list and check them.

To add one: a file with a flow (see `wire.py`), a row here, a test. The laws in `tests/` run over
every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accordion.errors import ConfigError
from accordion.messages import Level, OptionValue
from accordion.options import Option, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """One method."""

    summary: str
    feedback: bool
    """Whether what compression leaves out is kept as a residual and sent later."""
    flow: str
    """`module:function`, loaded at first use."""
    exact: bool = False
    """True: nothing is left out. A method that is neither exact nor keeps a residual loses what it
    leaves out.
    """
    low: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of the light level where nobody chose others."""
    high: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of the strong level where nobody chose others."""
    options: Mapping[str, Option] = field(default_factory=dict)
    warm_start: str | None = None
    """`module:function` giving the state that a layer keeps from step to step, fitted to a level;
    None keeps none.
    """
    raw_gradient: bool = False
    """True: the flow also gets the gradient without what is owed, as `context.gradient`; needs
    `feedback`.
    """
    alone: bool = False
    """True: no two layers share a flow. For methods whose draws or sums depend on who else is in
    the stack: stacks follow DDP's buckets, which differ between a first step and later ones, so a
    resumed run would not repeat itself.
    """
    matrices: bool = False
    """True: the flow gets layers as stacks of matrices `owed_BNM`; False: flattened, `owed_BL`."""


_DENSITY = Option(
    default=0.01, least=1e-6, most=1.0, lighter="more", help="part of the entries that is sent"
)

COMPRESSORS: Mapping[str, Compressor] = {
    "none": Compressor(
        summary="the gradient as it is; sends an old residual once",
        feedback=False,
        exact=True,
        flow="accordion.compressors.none:none_flow",
    ),
    "half": Compressor(
        summary="16 bits a value",
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
                default=4, least=1, most=1024, lighter="more", help="columns of the factors"
            ),
            "factors": Option(
                default="both",
                choices=("both", "alternating"),
                help=(
                    "sent in a step; in turn costs half the bytes and one round less, and follows"
                    " the gradient slower"
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
                    "by a threshold guessed from a sample, or among all entries at once; both send"
                    " the largest"
                ),
            ),
        },
        low={"density": 0.1},
        high={"density": 0.01},
    ),
    "randomk": Compressor(
        summary="entries at positions that all workers draw alike, averaged in place",
        feedback=True,
        flow="accordion.compressors.randomk:randomk_flow",
        alone=True,
        options={"density": _DENSITY},
        low={"density": 0.1},
        high={"density": 0.01},
    ),
    "signsgd": Compressor(
        summary="one bit a value, and a scale a layer (arXiv:1802.04434, arXiv:1901.09847)",
        feedback=True,
        flow="accordion.compressors.signsgd:signsgd_flow",
    ),
    "qsgd": Compressor(
        summary=(
            "a few bits a value, rounded at random so that the mean is right (arXiv:1610.02132)"
        ),
        feedback=False,
        flow="accordion.compressors.qsgd:qsgd_flow",
        alone=True,
        options={
            "bits": Option(
                default=8, least=2, most=8, lighter="more", help="for a value, its sign included"
            ),
            "bucket": Option(
                default=512, least=8, most=1 << 15, lighter="less", help="values that share a norm"
            ),
        },
        low={"bits": 8},
        high={"bits": 4},
    ),
    "adacomp": Compressor(
        summary=(
            "of each bin the entries that the newest gradient makes large, as signs of one size"
            " (arXiv:1712.02679)"
        ),
        feedback=True,
        flow="accordion.compressors.adacomp:adacomp_flow",
        alone=True,
        raw_gradient=True,
        options={
            "bin_conv": Option(
                default=50,
                least=2,
                most=16382,
                lighter="less",
                help=(
                    "entries of a bin of a convolution; up to 62 a sent entry takes 8 bits,"
                    " above 16"
                ),
            ),
            "bin_other": Option(
                default=500,
                least=2,
                most=16382,
                lighter="less",
                help="entries of a bin of all other layers",
            ),
        },
        low={"bin_conv": 50, "bin_other": 500},
        high={"bin_conv": 500, "bin_other": 2000},
    ),
}


_LIGHTER = {"more": "larger", "less": "smaller"}
"""Value of an option at the light level, by the direction that compresses less."""


def ladder_of(
    method: str,
    low: Mapping[str, OptionValue] | None = None,
    high: Mapping[str, OptionValue] | None = None,
) -> tuple[Level, ...]:
    """The method's rungs from the lightest to the strongest; an option that is not given is the
    method's own there.

    Raises:
        ConfigError: an unknown method or option, a value out of range, or a light level that
            compresses harder.
    """
    row = _row(method)
    light = level_of(method, {**row.low, **_given(low, f"{method} level 'low'")}, name="low")
    strong = level_of(method, {**row.high, **_given(high, f"{method} level 'high'")}, name="high")
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


def _given(options: Mapping[str, OptionValue] | None, where: str) -> Mapping[str, OptionValue]:
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"{where} is {options!r}; give its options by name")
    return options or {}


def level_of(method: str, options: Mapping[str, OptionValue], *, name: str) -> Level:
    """A checked level with every option spelled out.

    Raises:
        ConfigError: an unknown method or option, or a value out of range.
    """
    checked = check_options(options, _row(method).options, f"{method} level {name!r}")
    return Level(name=name, method=method, options=checked)


def _row(method: str) -> Compressor:
    if method not in COMPRESSORS:
        raise ConfigError(
            f"unknown compression method {method!r}; known are {', '.join(COMPRESSORS)}"
        )
    return COMPRESSORS[method]


__all__ = ["COMPRESSORS", "Compressor", "ladder_of", "level_of"]
