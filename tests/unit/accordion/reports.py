"""Reports and strategies that the tests of detector, controller and overrides share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from hypothesis import strategies as st

from accordion.base.messages import LayerInfo, Report
from accordion.config import Config, DetectorConfig, Window
from accordion.decide.controller import Controller
from accordion.decide.detector import DetectorResult, DetectorState, init_detector, update_detector

NAMES = ("fc1.weight", "fc2.weight", "head.weight")
LAYERS = tuple(LayerInfo(name=name, shape=(8, 8)) for name in NAMES)
NORMS = st.floats(min_value=0.0, allow_infinity=True) | st.just(math.nan)


def report(
    epoch: int, statistic: float | Mapping[str, float] | None = None, **changes: object
) -> Report:
    """The report at the end of an epoch; one number stands for all layers."""
    if isinstance(statistic, int | float):
        statistic = dict.fromkeys(NAMES, float(statistic))
    fields = {
        "step": 10 * (epoch + 1),
        "epoch_end": True,
        "world_size": 2,
        "global_batch": 64,
        "lr": 0.1,
    }
    fields |= {"epoch": epoch, "statistic_by_layer": statistic} | changes
    fields.setdefault("next_lr", fields["lr"])
    return Report(**fields)


def replay(
    reports: Iterable[Report],
    config: DetectorConfig | None = None,
    state: DetectorState | None = None,
) -> list[tuple[DetectorState, DetectorResult]]:
    """State and result after each report."""
    config, state = config or DetectorConfig(), state or init_detector(NAMES)
    answers = []
    for item in reports:
        state, result = update_detector(state, item, config)
        answers.append((state, result))
    return answers


def regimes_of(
    statistics: Iterable[float | None],
    config: DetectorConfig | None = None,
    **changes: Callable[[int], object],
) -> list[str]:
    """Regime of the first layer after each epoch; `changes` give a report's field by epoch."""
    made = [
        report(epoch, value, **{name: of(epoch) for name, of in changes.items()})
        for epoch, value in enumerate(statistics)
    ]
    return [state.regime_by_layer[NAMES[0]] for state, _ in replay(made, config)]


def controller(**settings: object) -> Controller:
    """A controller of three layers whose windows are one epoch long."""
    settings.setdefault("detector", DetectorConfig(window=Window(epochs=1)))
    return Controller(Config(**settings), LAYERS)


@st.composite
def histories(draw: st.DrawFn) -> list[Report]:
    """Any run: windows open and closed, norms of every kind, changes of rate, batch and
    world size.
    """
    made = []
    for epoch in range(draw(st.integers(1, 8))):
        statistic = draw(st.none() | st.fixed_dictionaries(dict.fromkeys(NAMES, NORMS)))
        rates = st.sampled_from([0.1, 0.05, 0.01, 0.0])
        sizes = {
            "world_size": draw(st.integers(1, 3)),
            "global_batch": draw(st.sampled_from([0, 64, 512])),
        }
        made.append(report(epoch, statistic, lr=draw(rates), next_lr=draw(rates), **sizes))
    return made
