"""What methods, levels and local steps do to what a job learns, by simulation:
`python -m tests.bench.learning [--recipes NAME...]`; ACCORDION_DATA has the data.

Every contestant runs at its own best learning rate: all rates of a recipe's grid are tried with the
seeds of `TRIED`, then rates beyond its ends, as long as the best one is at an end; the best one is
run again with the seeds of `FRESH`, which alone are in the table. Runs are kept in
`build/learning`, and tables in `results/learning.json`; neither are repeated, so a run that was
interrupted goes on, and a rate that is added to a grid is all that is tried for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from accordion_client.commands.run_groups import compute_interval
from tests.bench import report

RESULTS = Path(__file__).with_name("results")
RUNS = Path("build/learning")
RECIPES = Path("deploy/recipes")
WORKERS = 4
TRIED, FRESH = (100, 101), (0, 1, 2)

TITLE = "What is learned, by method and bytes"

LOCAL = "local_steps"
EVERY_STEP = {LOCAL: "null"}


def _rank(rank: int) -> dict[str, str]:
    return {
        **EVERY_STEP,
        "compression": f"{{method: powersgd, low: {{rank: {rank}}}, high: {{rank: {rank}}}}}",
    }


def _quantize(bits: int) -> dict[str, str]:
    return {"compression": f"{{method: qsgd, low: {{bits: {bits}}}, high: {{bits: {bits}}}}}"}


def _start(part: str, steps: int) -> dict[str, dict[str, str]]:
    """Return two contestants whose local steps begin after a part of all 480 steps."""
    name, local = (
        f"{part} start, 15 local steps and more",
        f"low: 15, high: 150, start_steps: {steps}",
    )
    return {
        f"{name}, 4 bits": {LOCAL: f"{{{local}}}"},
        f"{name}, 4 bits, Nesterov": {LOCAL: f"{{{local}, outer: nesterov}}"},
    }


NONE = {"none, every step": {**EVERY_STEP, "compression": "{method: none}"}}
QSGD = {"QSGD 4 bits, every step": EVERY_STEP}
TWO_LEVEL = {
    "two_level, rank 4 and 1": {
        **EVERY_STEP,
        "compression": "{method: powersgd, low: {rank: 4}, high: {rank: 1}}",
        "policy": "{name: two_level, threshold: 0.5, window: {steps: 16}}",
    }
}
BY_RATE = {
    "by_rate, rank 3 and 1": {
        **EVERY_STEP,
        "compression": "{method: powersgd, low: {rank: 3}, high: {rank: 1}}",
        "policy": "{name: by_rate, window: {epochs: 1}}",
    }
}


COSINE = {"training.lr_decay": "{shape: cosine, floor: 0.01}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A job whose contestants are compared."""

    file: str
    data: str
    """Path below ACCORDION_DATA."""
    metric: str
    smaller: bool
    rates: Sequence[float]
    """Grid of learning rates, of which each contestant takes its best."""
    contestants: Mapping[str, Mapping[str, str]]
    """Changes of the recipe by contestant."""
    published: Mapping[str, str] = field(default_factory=dict)
    """What was published about a contestant, on whatever model."""
    arguments: Sequence[str] = ()
    """More arguments of `accordion simulate`, such as a device."""

    @property
    def sign(self) -> int:
        """1 if a smaller metric is better, otherwise -1."""
        return 1 if self.smaller else -1

    def find_best(self, means: Mapping[float, float]) -> float:
        """Return the learning rate with the best metric."""
        return min(means, key=lambda rate: self.sign * means[rate])

    def choose_rates(self, means: Mapping[float, float]) -> Sequence[float]:
        """Return the rates to try next: those of the grid, then half of the least or twice the
        largest one tried, if that one is the best.
        """
        if left := [rate for rate in self.rates if rate not in means]:
            return left
        best = self.find_best(means)
        if best == min(means):
            return (best / 2,)
        return (best * 2,) if best == max(means) else ()


ALL = {
    "images": Recipe(
        file="cpu/local-steps.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.025, 0.05, 0.1, 0.2),
        contestants={
            **NONE,
            "4 local steps, 32 after the drop, 4 bits": {},
            "7 local steps, 4 bits": {LOCAL: "{low: 7}"},
            "4 local steps, 32 after the drop, 3 bits": _quantize(3),
            "4 local steps, 32 after the drop, 2 bits": _quantize(2),
            "6 local steps, 48 after the drop, 4 bits": {LOCAL: "{low: 6, high: 48}"},
            "32 local steps, 4 bits": {LOCAL: "{low: 32}"},
            **BY_RATE,
            **TWO_LEVEL,
            **QSGD,
            **{f"PowerSGD rank {rank}": _rank(rank) for rank in (4, 2, 1)},
        },
    ),
    "images, new labels": Recipe(
        file="cpu/local-steps.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.025, 0.05, 0.1, 0.2),
        contestants={
            name: {"task.name": "new_labels:NewLabels", **changes}
            for name, changes in {
                **NONE,
                "4 local steps, 32 after the drop, 4 bits": {},
                "4 local steps, 4 bits": {LOCAL: "{low: 4}"},
                "32 local steps, 4 bits": {LOCAL: "{low: 32}"},
            }.items()
        },
    ),
    "images, cosine": Recipe(
        file="cpu/local-steps.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.025, 0.05, 0.1, 0.2),
        contestants={
            name: {**COSINE, **changes}
            for name, changes in {
                **NONE,
                "4 local steps, up to 32 as the rate falls, 4 bits": {},
                "4 local steps, up to 32 as the rate falls, 2 bits": _quantize(2),
                "7 local steps, 4 bits": {LOCAL: "{low: 7}"},
                **BY_RATE,
                **{f"PowerSGD rank {rank}": _rank(rank) for rank in (4, 2)},
            }.items()
        },
    ),
    "LSTM": Recipe(
        file="cpu/lstm.yaml",
        data="tinyshakespeare/input.txt",
        metric="loss",
        smaller=True,
        rates=(0.01, 0.02, 0.03, 0.04),
        contestants={
            **NONE,
            **QSGD,
            "PowerSGD rank 4": _rank(4),
            **_start("10 %", 48),
            **_start("20 %", 96),
            "15 local steps and more, 4 bits": {LOCAL: "{low: 15, high: 150}"},
            "25 local steps, 4 bits": {LOCAL: "{low: 25}"},
            "25 local steps, 2 bits": {LOCAL: "{low: 25}", **_quantize(2)},
            "60 local steps, 4 bits": {LOCAL: "{low: 60}"},
        },
    ),
    "transformer": Recipe(
        file="cpu/transformer.yaml",
        data="tinyshakespeare/input.txt",
        metric="loss",
        smaller=True,
        rates=(0.003, 0.006, 0.012, 0.024),
        contestants={
            **NONE,
            **_start("10 %", 48),
            **_start("30 %", 144),
            "30 % start, 20 local steps, 4 bits, Nesterov": {
                LOCAL: "{low: 20, high: 20, start_steps: 144, outer: nesterov}"
            },
            **{
                f"30 % start, 15 local steps and more, {bits} bits": {
                    LOCAL: "{low: 15, high: 150, start_steps: 144}",
                    **_quantize(bits),
                }
                for bits in (3, 2)
            },
            "15 local steps and more, 4 bits": {LOCAL: "{low: 15, high: 150}"},
            "25 local steps, 4 bits": {LOCAL: "{low: 25}"},
            **QSGD,
            "PowerSGD rank 4": _rank(4),
        },
    ),
}


def run_recipe(
    name: str, recipe: Recipe, known: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Run all contestants of a recipe; yield a row for each. `known` are rows of an earlier run."""
    for contestant, changes in recipe.contestants.items():
        before = known.get(contestant, {"rate": None, "tried": {}})
        means = {float(rate): mean for rate, mean in before["tried"].items()}
        while rates := recipe.choose_rates(means):
            for rate in rates:
                tried = _simulate(name, recipe, contestant, changes, rate=rate, seeds=TRIED)
                values = [one["metric"] for one in tried]
                # A rate with which a seed fails is not the best one.
                means[rate] = fmean(values) if None not in values else math.inf * recipe.sign
        best = recipe.find_best(means)
        means = {rate: mean for rate, mean in sorted(means.items()) if math.isfinite(mean)}
        if best == before["rate"]:
            yield {**before, "tried": {str(rate): mean for rate, mean in means.items()}}
            continue
        seeds = _simulate(name, recipe, contestant, changes, rate=best, seeds=FRESH)
        if any(one["metric"] is None for one in seeds):
            raise SystemExit(f"{name}, {contestant}: a fresh seed at rate {best} has no result")
        yield {
            "recipe": name,
            "contestant": contestant,
            "rate": best,
            "tried": {str(rate): mean for rate, mean in means.items()},
            "values": [one["metric"] for one in seeds],
            "wire": fmean(one["wire"] for one in seeds),
            "payload": fmean(one["payload"] for one in seeds),
            "dense_wire": fmean(one["dense_wire"] for one in seeds),
            "commit": seeds[0]["commit"],
        }


def _simulate(
    name: str,
    recipe: Recipe,
    contestant: str,
    changes: Mapping[str, str],
    *,
    rate: float,
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """Return the results of a contestant's seeds at a learning rate, and the commit at which they
    ran: kept runs are of an earlier one.
    """
    place = "".join(one if one.isalnum() else "-" for one in f"{name}-{contestant}-{rate}")
    folder = RUNS / place
    commit = folder / f"commit-{seeds[0]}"
    if not commit.exists():
        folder.mkdir(parents=True, exist_ok=True)
        commit.write_text(_describe_commit())
    data = Path(os.environ["ACCORDION_DATA"], recipe.data)
    settings = {
        **changes,
        "training.optimizer.lr": str(rate),
        "task.options.data": str(data),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accordion_client.commands.main", "simulate"),
            *(str(RECIPES / recipe.file), "--workers", str(WORKERS), "--json"),
            *("--seeds", ",".join(map(str, seeds)), "--out", str(folder)),
            *recipe.arguments,
            *(f"--set={key}={value}" for key, value in settings.items()),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    view = json.loads(done.stdout)
    # The metric of a run that failed is not that of its end.
    return [
        {
            **one,
            "metric": one["metric"] if one["status"] == "SUCCEEDED" else None,
            "commit": commit.read_text(),
        }
        for one in view["seeds"]
    ]


def _describe_commit() -> str:
    """Return the commit, and whether the checkout has changes beside results."""
    changed = report.read_git("status", "--porcelain", "--", ".", f":!{report.RESULTS}")
    commit = report.read_git("rev-parse", "--short", "HEAD")
    return f"{commit} with changes" if changed else commit


def write_table(
    rows: Sequence[Mapping[str, Any]],
    recipes: Mapping[str, Recipe] = ALL,
    *,
    title: str = TITLE,
) -> str:
    """Return the tables of all recipes, by bytes."""
    lines = [
        f"# {title}",
        "",
        f"{WORKERS} simulated workers (`accordion simulate`), each contestant at the best of the"
        f" learning rates that were tried for it with seeds {TRIED[0]} and {TRIED[1]}; mean of"
        f" {len(FRESH)} fresh seeds, and half of the 95 % interval by Student's t. Bytes are those"
        " that one worker sends in the whole run; `tried` is the metric by learning rate.",
    ]
    for name, recipe in recipes.items():
        own = [row for row in rows if row["recipe"] == name]
        if not own:
            continue
        lines += ["", f"## {name}: `{RECIPES / recipe.file}`", ""]
        head = ["contestant", recipe.metric, "on the wire", "against none", "payload", "rate"]
        head += ["tried", "commit", *(["published"] if recipe.published else [])]
        lines += [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
        for row in sorted(own, key=lambda row: -row["wire"]):
            mean, half = compute_interval(row["values"])
            scale, digits, unit = (1, 3, "") if recipe.smaller else (100, 1, " %")
            shown = f"{scale * mean:.{digits}f} ±{scale * half:.{digits}f}{unit}"
            tried = ", ".join(
                f"{rate}: {scale * value:.{digits}f}" for rate, value in row["tried"].items()
            )
            line = (
                f"| {row['contestant']} | {shown} | {row['wire'] / 1e6:.2f} MB |"
                f" {row['dense_wire'] / row['wire']:.1f}× | {row['payload'] / 1e6:.2f} MB |"
                f" {row['rate']} | {tried} | {row['commit']} |"
            )
            if recipe.published:
                line += f" {recipe.published.get(row['contestant'], '')} |"
            lines.append(line)
    return "\n".join(lines) + "\n"


def run_all(recipes: Mapping[str, Recipe], names: Sequence[str], *, file: Path, title: str) -> None:
    """Run the named recipes; write rows to a JSON file, and tables beside it, after each
    contestant.
    """

    def read() -> list[dict[str, Any]]:
        return json.loads(file.read_text()) if file.exists() else []

    for name in names:
        known = {row["contestant"]: row for row in read() if row["recipe"] == name}
        for row in run_recipe(name, recipes[name], known):
            same = (row["recipe"], row["contestant"])
            # Another process may have added rows of another recipe.
            rows = [one for one in read() if (one["recipe"], one["contestant"]) != same] + [row]
            file.write_text(json.dumps(rows, indent=1) + "\n")
            file.with_suffix(".md").write_text(write_table(rows, recipes, title=title))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=tuple(ALL), default=tuple(ALL))
    asked = parser.parse_args().recipes
    run_all(ALL, asked, file=RESULTS / "learning.json", title=TITLE)
