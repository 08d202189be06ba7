"""What tasks measure, as short texts by its own names; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.commands.words import number


def metric(name: str, value: float | None) -> str:
    """What a task measured: accuracy in percent, all else as it is; a dash where there is none."""
    return f"{100 * value:.1f} %" if name == "accuracy" and value is not None else number(value)


def quality(metrics: Mapping[str, float]) -> str:
    """What the task measures, by its own names, accuracy first; a dash where there is nothing but
    the loss.
    """
    names = sorted(measured([metrics]), key=lambda name: name != "accuracy")
    return ", ".join(f"{name} {metric(name, metrics[name])}" for name in names) or "-"


def measured(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Names of all that was measured besides the loss, in order of appearance."""
    return [
        name
        for name in dict.fromkeys(name for metrics in rows for name in metrics)
        if name != "loss"
    ]
