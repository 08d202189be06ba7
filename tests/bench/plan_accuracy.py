"""Predicted against measured steps, over methods, levels, links and numbers of workers:
`python -m tests.bench.plan_accuracy [--quick] [--rows NAME...]`.

What is compared is `accordion plan` with real steps of the same job on shaped links: each host
measures its own share first, without a network, and is given the link's nominal rate and latency.
Each row is written to `results/plan_accuracy.json` when it is complete. It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import report
from tests.bench.hosts import WorkerHosts
from tests.bench.network import RESULTS, LinkShape
from tests.netlab.lab import may_make_hosts

LEVELS = ("none", "half", "powersgd low", "powersgd high", "topk high", "qsgd low", "signsgd")
CHANNELS = 32
REACH_MEDIAN, REACH_WORST = 0.10, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Workers and the link of each of them."""

    workers: int
    link: LinkShape
    channels: int = CHANNELS
    """Width of the ResNet-18; 64 is the published one."""

    @property
    def name(self) -> str:
        """Name in the table, such as `2 workers 40+8`."""
        width = "" if self.channels == CHANNELS else f" width {self.channels}"
        return f"{self.workers} workers {self.link.name}{width}"

    @property
    def spec(self) -> dict[str, Any]:
        """The job: eight pictures a worker and step."""
        data = Path(os.environ["ACCORDION_DATA"], "cifar10-subset.zip")
        return {
            "task": {
                "name": "cifar-resnet18",
                "options": {"data": str(data), "channels": self.channels, "samples": 4000},
            },
            "workers": {"max": self.workers, "balance": False},
            "training": {"global_batch": 8 * self.workers, "micro_batch": 8},
            "checkpoint": {"every_epochs": 1000},
        }


ROWS = (
    Row(workers=2, link=LinkShape(rate=25)),
    Row(workers=2, link=LinkShape(rate=40, delay_ms=8)),
    Row(workers=2, link=LinkShape(rate=100)),
    Row(workers=2, link=LinkShape(rate=250, delay_ms=3)),
    Row(workers=2, link=LinkShape(rate=1000)),
    Row(workers=2, link=LinkShape(rate=200), channels=64),
    Row(workers=3, link=LinkShape(rate=100)),
    Row(workers=4, link=LinkShape(rate=50, delay_ms=5)),
    Row(workers=4, link=LinkShape(rate=500)),
)


def main(arguments: Sequence[str]) -> None:
    """Measure the rows that are asked for, print them, and keep them."""
    asked = _parse(arguments)
    if not may_make_hosts():
        sys.exit("making network namespaces needs root; run this as root")
    file = asked.out / "plan_accuracy.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for row in ROWS:
        if asked.rows and row.name not in asked.rows:
            continue
        around = report.surroundings()
        found[row.name] = {"levels": _measure(row, quick=asked.quick), **around}
        print(json.dumps({row.name: found[row.name]["levels"]}, indent=1), flush=True)
        asked.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
        file.with_suffix(".md").write_text(_table(found))
    print(_table(found))


def _measure(row: Row, *, quick: bool) -> dict[str, dict[str, float]]:
    processors = len(os.sched_getaffinity(0))
    os.environ["BENCH_CPU_SHARE"] = "1" if row.workers <= processors else "0.5"
    spec, levels = row.spec, LEVELS[2:4] if quick else LEVELS
    with WorkerHosts(
        row.workers, delay_ms=row.link.delay_ms, program="tests.bench.plan_worker"
    ) as hosts:
        predictions = hosts.ask(
            "predict",
            spec=spec,
            workers=row.workers,
            latency_s=row.link.delay_ms / 1e3,
            bytes_per_s=row.link.rate * 1e6 / 8,
        )
        hosts.shape(row.link.rate)
        predicted = {name: predictions[0][name] for name in levels}
        measured = hosts.ask(
            "measure",
            spec=spec,
            workers=row.workers,
            predicted_s={name: one["step_s"] for name, one in predicted.items()},
        )
    return {
        name: {
            **{key: round(value, 5) for key, value in predicted[name].items()},
            "measured_s": round(max(one[name] for one in measured), 5),
        }
        for name in levels
    }


def error(level: Mapping[str, float]) -> float:
    """Relative error of a prediction; positive if the real step was faster."""
    return level["step_s"] / level["measured_s"] - 1.0


def _table(found: Mapping[str, Any]) -> str:
    errors = [abs(error(level)) for row in found.values() for level in row["levels"].values()]
    names = list(dict.fromkeys(name for row in found.values() for name in row["levels"]))
    lines = [
        "# Predicted against measured steps",
        "",
        "`accordion plan` for ResNet-18 on images of 32 x 32 pixels, eight per worker, gloo,"
        " against real steps of the same job. A link's name gives its Mbit/s and, after the plus"
        " sign, the milliseconds from host to host. Three and four workers have half a processor"
        " each. A cell has the predicted and the measured step, and the relative error.",
        "",
        f"Of {len(errors)} predictions, the median error is {median(errors):.0%} (wanted: at most"
        f" {REACH_MEDIAN:.0%}), the largest {max(errors):.0%} (wanted: at most {REACH_WORST:.0%}).",
        "",
        f"| workers and link | {' | '.join(names)} |",
        f"|{' --- |' * (1 + len(names))}",
    ]
    for name, row in found.items():
        cells = [_cell(row["levels"].get(level)) for level in names]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(level: Mapping[str, float] | None) -> str:
    if level is None:
        return ""
    return f"{1e3 * level['step_s']:.0f} · {1e3 * level['measured_s']:.0f} ms ({error(level):+.0%})"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.plan_accuracy",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--quick", action="store_true", help="two levels: shows that it works")
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[],
        choices=[row.name for row in ROWS],
        help="rows to measure (default: all)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
