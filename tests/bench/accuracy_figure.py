"""Picture of accuracy over time, on the link that all seeds ran on: one panel for each task.

`python -m tests.bench.accuracy_figure` draws it from `results/accuracy.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.accuracy import CONTESTS, LINKS, RESULTS
from tests.bench.learning import ALL, EVERY_STEP, LOCAL
from tests.bench.learning_figure import add_legend

COLORS = {"peers": "#444444", "ours, every step": "#2f6fb0", "ours, local steps": "#c1440e"}
PANEL_INCHES = (6.0, 5.4)


def draw(runs: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw all tasks that have runs, as SVG whose text stays text."""
    shown = [run for run in runs if run["link"] == LINKS[0].name and not run["failed"]]
    names = [name for name in CONTESTS if any(run["task"] == name for run in shown)]
    width, height = PANEL_INCHES
    style = {"svg.fonttype": "none", "svg.hashsalt": "accuracy", "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure(figsize=(width * len(names), height), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for name, axes in zip(names, panels, strict=True):
            _draw_task(axes, name, [run for run in shown if run["task"] == name])
        # Without a date, the same runs give the same file.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_task(axes: Axes, name: str, runs: Sequence[Mapping[str, Any]]) -> None:
    recipe = ALL[name]
    scale = 1.0 if recipe.smaller else 100.0
    by_contestant: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        by_contestant.setdefault(run["contestant"], []).append(run)
    lines = sorted(by_contestant.items(), key=lambda one: -one[1][0]["epochs"][-1]["seconds"])
    for number, (contestant, own) in enumerate(lines, start=1):
        epochs = list(zip(*(run["epochs"] for run in own), strict=True))
        seconds = [fmean(one["seconds"] for one in epoch) for epoch in epochs]
        metric = [scale * fmean(one["metric"] for one in epoch) for epoch in epochs]
        color = COLORS[choose_group(name, contestant)]
        axes.plot(seconds, metric, color=color, alpha=0.7, linewidth=1.0)
        axes.annotate(str(number), (seconds[-1], metric[-1]), color=color, weight="bold")
        axes.plot([], [], " ", label=f"{number}: {contestant}")
    for group, color in COLORS.items():
        axes.plot([], [], color=color, label=group)
    axes.axhline(scale * CONTESTS[name].target, color="#888888", linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if recipe.smaller:
        axes.invert_yaxis()
    axes.set_xlabel("seconds of training, without evaluations")
    axes.set_ylabel(f"{recipe.metric}{'' if recipe.smaller else ', %'}: better above")
    axes.set_title(f"{name}, {LINKS[0].name} Mbit/s")
    add_legend(axes)


def choose_group(task: str, contestant: str) -> str:
    """Return the key of `COLORS` for a contestant."""
    changes = CONTESTS[task].ours.get(contestant)
    if changes is None:
        return "peers"
    exchanges_every_step = changes.get(LOCAL) == EVERY_STEP[LOCAL]
    return "ours, every step" if exchanges_every_step else "ours, local steps"


if __name__ == "__main__":
    draw(json.loads((RESULTS / "accuracy.json").read_text())["runs"], RESULTS / "accuracy.svg")
