"""Picture of what is learned over the bytes that are sent: one panel for each recipe.

`python -m tests.bench.learning_figure` draws it from `results/learning.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accordion_client.commands.run_groups import compute_interval
from tests.bench.learning import ALL, RESULTS, Recipe

COLORS = {"uncompressed": "#444444", "every step": "#2f6fb0", "local steps": "#c1440e"}
PANEL_INCHES = (6.8, 4.8)


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw all recipes that have rows, as SVG whose text stays text."""
    names = [name for name in ALL if any(row["recipe"] == name for row in rows)]
    width, height = PANEL_INCHES
    style = {"svg.fonttype": "none", "svg.hashsalt": "learning", "font.size": 9}
    with mpl.rc_context(style):
        columns = min(2, len(names))
        lines = -(-len(names) // columns)
        figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
        for place, name in enumerate(names, start=1):
            axes = figure.add_subplot(lines, columns, place)
            _draw_recipe(axes, name, [row for row in rows if row["recipe"] == name])
        # Without a date, the same rows give the same file.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_recipe(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    recipe = ALL[name]
    scale = 1.0 if recipe.smaller else 100.0
    for number, row in enumerate(sorted(rows, key=lambda one: -one["wire"]), start=1):
        mean, half = compute_interval(row["values"])
        group = choose_group(recipe, row["contestant"])
        at = (row["wire"] / 1e6, scale * mean)
        axes.errorbar(*at, yerr=scale * half, color=COLORS[group], fmt="o", capsize=3, alpha=0.8)
        axes.annotate(str(number), at, xytext=(5, 4), textcoords="offset points", weight="bold")
        axes.plot([], [], " ", label=f"{number}: {row['contestant']}")
    for group, color in COLORS.items():
        axes.plot([], [], "o", color=color, label=group)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.invert_xaxis()
    if recipe.smaller:
        axes.invert_yaxis()
    axes.set_xlabel("MB that one worker sends in the run: fewer to the right")
    axes.set_ylabel(f"{recipe.metric}{'' if recipe.smaller else ', %'}: better above")
    axes.set_title(name)
    add_legend(axes)


def add_legend(axes: Axes) -> None:
    """List what is drawn below a panel, in two columns; many lines fit there."""
    axes.grid(alpha=0.3)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=2,
        fontsize=7,
        handlelength=0.8,
        frameon=False,
    )


def choose_group(recipe: Recipe, contestant: str) -> str:
    """Return the key of `COLORS` for a contestant; one that is no longer in the recipe had a start
    that ended by itself, and local steps after it.
    """
    changes = recipe.contestants.get(contestant, {})
    if "none" in changes.get("compression", ""):
        return "uncompressed"
    return "every step" if changes.get("local_steps") == "null" else "local steps"


if __name__ == "__main__":
    draw(json.loads((RESULTS / "learning.json").read_text()), RESULTS / "learning.svg")
