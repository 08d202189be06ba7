"""Detects critical regimes by the relative change of each layer's gradient norm; stdlib only.

    |old - new| / old >= threshold   ->  critical, else stable

(arXiv:2010.16248, algorithm 1)

`old` and `new` are the statistics of two consecutive windows. Two differences from the published
rule: a learning-rate drop counts by its size, because cosine decay lowers the rate in every epoch
and no layer would ever be stable; and a window in which the batch or world size changed is not
compared, because its statistic has a different noise. Neither is the first window of local steps,
whose changes of parameters have another scale than gradients.

The size of a drop is relative, so a decay to zero would end in drops: its last steps halve the rate
although they are no larger than those before. Neither the rate nor its fraction of the largest one
tells them from a step decay, whose steps become small too. What does is that a step decay is
sudden: its fall is far larger than any between two reports since the last drop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from accordion.base.errors import ReportError
from accordion.base.messages import BatchLevel, DecisionCause, Regime, Report
from accordion.config import BatchConfig, DetectorConfig

_GRADUAL_FALL = 2.0
"""Fall of the rate up to which it continues a gradual decay, relative to the largest since a drop.

Equal falls (linear decay) and shrinking ones (exponential decay, the end of cosine decay) stay
below it, also if reports come at uneven times; after a constant rate, every fall is above it.
"""
_WHOLE = "*"
"""Name of the whole model where it is judged as one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorState:
    """State of the detector; `init_detector` returns the initial one."""

    regime_by_layer: Mapping[str, Regime]
    """Regime of every layer; critical at the start."""
    statistic_by_layer: Mapping[str, float] = field(default_factory=dict)
    """Finite statistics of the last closed window; a missing layer cannot be compared."""
    lr: float | None = None
    """Rate that the last report announced, or, until the window of a drop closes, the rate before
    the drop; None before the first report.
    """
    lr_fall: float = 0.0
    """Largest fall of the rate from one report to the next since the last drop."""
    global_batch: int | None = None
    """Global batch size in the last report; None before the first report."""
    world_size: int | None = None
    """World size in the last report; None before the first report."""
    is_local: bool | None = None
    """Whether the last report's window held changes by local steps; None before the first report.
    """
    skip_window: bool = False
    """Whether the open window is not compared, after a change of batch or world size, or from
    gradients to local steps or back.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorResult:
    """Result of one report; the regimes are in the state."""

    cause: DecisionCause
    reason: str
    change_by_layer: Mapping[str, float | None]
    """Relative change of the statistic; None if it was not compared or is not finite."""


def window_is_full(config: DetectorConfig, steps: int, *, last: int = 1) -> bool:
    """Return whether a window counted in steps ended in the `last` of this many steps."""
    length = config.window_in_force.steps
    return length is not None and steps // length > (steps - last) // length


def window_is_due(config: DetectorConfig, epoch: int, *, epoch_end: bool) -> bool:
    """Return whether a window ends here; `paper` checks after the first epoch of each window."""
    if config.window_in_force.epochs is None:
        return not epoch_end
    number = epoch if config.statistic == "paper" else epoch + 1
    return epoch_end and number % config.window_in_force.epochs == 0


def init_detector(layers: Sequence[str]) -> DetectorState:
    """Return the state before the first report, in which every layer is critical."""
    return DetectorState(regime_by_layer=dict.fromkeys(layers, "critical"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """State of the batch level; `init_batch` returns the initial one."""

    detector: DetectorState
    """State of the detector for the whole model as one layer."""
    level: BatchLevel = "low"


def init_batch() -> BatchState:
    """Return the state before the first report: a critical model and the small batch."""
    return BatchState(detector=init_detector((_WHOLE,)))


def update_batch(
    state: BatchState, report: Report, config: DetectorConfig, *, batch: BatchConfig
) -> tuple[BatchState, str]:
    """Return the state after a report, and the reason if the level changed, else "".

    The whole model is judged like one layer whose statistic is sqrt(sum over layers of
    statistic^2). A critical model gets the small batch and a stable one the large batch
    (arXiv:2010.16248, section on batch sizes; many summaries say the opposite).

    Raises:
        ReportError: in the cases of `update_detector`.
    """
    given = report.statistic_by_layer
    whole = replace(
        report, statistic_by_layer=None if given is None else {_WHOLE: math.hypot(*given.values())}
    )
    detector, result = update_detector(state.detector, whole, config)
    level: BatchLevel = "high" if detector.regime_by_layer[_WHOLE] == "stable" else "low"
    if batch.grow_only and state.level == "high":
        level = "high"
    after = BatchState(detector=detector, level=level)
    return after, "" if level == state.level else _batch_reason(level, result, config, batch=batch)


def update_detector(
    state: DetectorState, report: Report, config: DetectorConfig
) -> tuple[DetectorState, DetectorResult]:
    """Return the state after a report, and the result.

    A window that closes is compared with the previous one. The first window, and one in which the
    batch, the world size or what is exchanged changed, is only a reference for the next. A learning
    rate that drops makes every layer critical at once, even in the middle of a window, and again
    when that window closes: the regime lasts for at least one whole window.

    Raises:
        ReportError: the layers differ from the model's, the statistic is not the configured one, or
            a learning rate is negative or not finite.
    """
    _check_report(state, report, config)
    asked = _with_conditions(state, report)
    if report.statistic_by_layer is None:
        after = asked
        result = _uncompared_result(asked, "hold", f"{_describe_open(report)}: regimes stay")
    else:
        after, result = _close_window(asked, report, report.statistic_by_layer, config=config)
    if _rate_dropped(asked, report, config):
        after = replace(after, regime_by_layer=dict.fromkeys(after.regime_by_layer, "critical"))
        result = replace(result, cause="lr_drop", reason=_drop_reason(asked, report, config))
    else:
        largest = max(asked.lr_fall, _rate_fall(asked, report))
        after = replace(after, lr=report.next_lr, lr_fall=largest)
    return after, result


def _describe_open(report: Report) -> str:
    if not report.window_steps:
        return "a new window has begun"
    unit = "steps" if report.local_steps == 1 else "rounds of local steps"
    return f"window still open after {report.window_steps} {unit}"


def _check_report(state: DetectorState, report: Report, config: DetectorConfig) -> None:
    for name, rate in (("lr", report.lr), ("next_lr", report.next_lr)):
        if not 0.0 <= rate < math.inf:
            raise ReportError(
                f"gradient report has {name}={rate}; a learning rate is finite and not below 0"
            )
    given = report.statistic_by_layer
    if given is not None and report.statistic_kind != config.statistic:
        raise ReportError(
            f"gradient report holds the statistic {report.statistic_kind!r}, the detector compares"
            f" {config.statistic!r}; report with statistic_kind={config.statistic!r}, or change the"
            " detector's statistic"
        )
    if given is not None and given.keys() != state.regime_by_layer.keys():
        missing = sorted(state.regime_by_layer.keys() - given.keys())
        unexpected = sorted(given.keys() - state.regime_by_layer.keys())
        raise ReportError(
            f"gradient report does not match the model: missing {missing}, unexpected {unexpected};"
            " was the model changed after attach()?"
        )


def _with_conditions(state: DetectorState, report: Report) -> DetectorState:
    """Return the state with what else the statistic depends on, and with the report's rate if it is
    first.
    """
    before = (state.global_batch, state.world_size, state.is_local)
    now = (report.global_batch, report.world_size, report.local_steps > 1)
    changed = before not in (now, (None, None, None))
    return replace(
        state,
        lr=report.lr if state.lr is None else state.lr,
        global_batch=report.global_batch,
        world_size=report.world_size,
        is_local=report.local_steps > 1,
        skip_window=state.skip_window or changed,
    )


def _rate_dropped(state: DetectorState, report: Report, config: DetectorConfig) -> bool:
    """Return whether the rate falls far enough, and suddenly unless any fall counts."""
    fall = _rate_fall(state, report)
    is_sudden = config.lr_drop == 1.0 or fall > _GRADUAL_FALL * state.lr_fall
    return fall > 0.0 and is_sudden and report.next_lr <= config.lr_drop * (state.lr or 0.0)


def _rate_fall(state: DetectorState, report: Report) -> float:
    return max(0.0, (state.lr or 0.0) - report.next_lr)


def _drop_reason(state: DetectorState, report: Report, config: DetectorConfig) -> str:
    return (
        f"learning rate drops from {state.lr:g} to {report.next_lr:g} (limit"
        f" {config.lr_drop:g} of it): {_all_layers(state)} critical"
    )


def _close_window(
    state: DetectorState, report: Report, statistics: Mapping[str, float], *, config: DetectorConfig
) -> tuple[DetectorState, DetectorResult]:
    finite = {layer: value for layer, value in statistics.items() if math.isfinite(value)}
    closed = replace(
        state, statistic_by_layer=finite, lr=report.next_lr, lr_fall=0.0, skip_window=False
    )
    if state.skip_window:
        closed = replace(closed, regime_by_layer=_broken_critical(state.regime_by_layer, finite))
        return closed, _uncompared_result(closed, "skip", _skip_reason(report))
    if not state.statistic_by_layer:
        return closed, _uncompared_result(
            closed,
            "window",
            f"nothing to compare this window with: {_all_layers(state)} stay critical",
        )
    verdicts = {
        layer: _judge_layer(layer, state, finite, config=config) for layer in state.regime_by_layer
    }
    closed = replace(
        closed, regime_by_layer={layer: regime for layer, (regime, _) in verdicts.items()}
    )
    changes = {layer: change for layer, (_, change) in verdicts.items()}
    reason = _window_reason(closed.regime_by_layer, changes, threshold=config.threshold)
    return closed, DetectorResult(cause="window", reason=reason, change_by_layer=changes)


def _judge_layer(
    layer: str, state: DetectorState, finite: Mapping[str, float], *, config: DetectorConfig
) -> tuple[Regime, float | None]:
    """Return the regime of a layer and its relative change.

    A layer whose norm is not finite in either window is critical. A layer whose norm stays zero is
    stable, or critical with `statistic="paper"`.
    """
    if layer not in finite or layer not in state.statistic_by_layer:
        return "critical", None
    old, new = state.statistic_by_layer[layer], finite[layer]
    if old == new and not (old == 0.0 and config.statistic == "paper"):
        return "stable", 0.0
    change = abs(old - new) / abs(old) if old else math.inf
    return "critical" if change >= config.threshold else "stable", (
        change if math.isfinite(change) else None
    )


def _broken_critical(
    regimes: Mapping[str, Regime], finite: Mapping[str, float]
) -> dict[str, Regime]:
    return {layer: regime if layer in finite else "critical" for layer, regime in regimes.items()}


def _uncompared_result(state: DetectorState, cause: DecisionCause, reason: str) -> DetectorResult:
    return DetectorResult(
        cause=cause, reason=reason, change_by_layer=dict.fromkeys(state.regime_by_layer)
    )


def _all_layers(state: DetectorState) -> str:
    return f"all {len(state.regime_by_layer)} layers"


def _skip_reason(report: Report) -> str:
    return (
        f"global batch (now {report.global_batch}), world size (now {report.world_size}) or what is"
        f" exchanged ({'local steps' if report.local_steps > 1 else 'gradients'}) changed: this"
        " window is not compared, regimes stay"
    )


def _batch_reason(
    level: BatchLevel, result: DetectorResult, config: DetectorConfig, *, batch: BatchConfig
) -> str:
    head = f"global batch becomes {batch.size(level)}"
    if result.cause == "lr_drop":
        return f"{head}: {result.reason.partition(':')[0]}"
    change = result.change_by_layer[_WHOLE]
    if change is None:
        return f"{head}: the change of the whole gradient has no finite size"
    return f"{head}: the whole gradient changed by {change:.3g} (threshold {config.threshold:g})"


def _window_reason(
    regimes: Mapping[str, Regime], changes: Mapping[str, float | None], *, threshold: float
) -> str:
    """Return a message that names the layer with the largest change."""
    critical = [layer for layer, regime in regimes.items() if regime == "critical"]
    head = f"{len(critical)} of {len(regimes)} layers critical"
    sized = {layer: change for layer, change in changes.items() if change is not None}
    unsized = [layer for layer in critical if layer not in sized]
    if unsized:
        return f"{head}: the change of {unsized[0]} has no finite size"
    if not sized:
        return head
    most = max(sized, key=lambda layer: sized[layer])
    return (
        f"{head}: {most} changed {'' if critical else 'most, '}by {sized[most]:.3g} (threshold"
        f" {threshold:g})"
    )


__all__ = [
    "BatchState",
    "DetectorResult",
    "DetectorState",
    "init_batch",
    "init_detector",
    "update_batch",
    "update_detector",
    "window_is_due",
    "window_is_full",
]
