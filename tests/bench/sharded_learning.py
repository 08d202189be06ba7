"""Time to a loss of a sharded model, beside FSDP2 itself, on the hosts of `tests.bench.sharded`:
`python -m tests.bench.sharded_learning [--links RATE...]`.

First every contestant's learning rate is chosen, without a limit of the links, then each is timed
at its own. A run that is in `results/sharded_learning.json` is not repeated. It needs root;
ACCORDION_DATA has the text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.hosts import WorkerHosts
from tests.bench.sharded_learning_worker import OURS, STEPS
from tests.bench.sharded_worker import TORCH

RESULTS = Path(__file__).with_name("results")
PROGRAM = "tests.bench.sharded_learning_worker"
CONTESTANTS = (*TORCH, *OURS)
RATES = (0.0005, 0.001, 0.002, 0.004)
TUNING_SEED, SEEDS = 100, (1, 2, 3)
LINKS = (100,)
ALLOWED_LOSS = 0.03
"""How far above the mean final loss of FSDP2's own exchange the loss lies to which time counts."""


def main(arguments: Sequence[str]) -> None:
    """Run what was not run yet, and write the table."""
    asked = _parse(arguments)
    runs = _Runs(asked.out / "sharded_learning.json")
    with WorkerHosts(4, per_host=2, program=PROGRAM) as hosts:
        hosts.ask("start")
        hosts.shape(0)
        for name in CONTESTANTS:
            for rate in RATES:
                runs.run(hosts, link=0, name=name, rate=rate, seed=TUNING_SEED)
        for link in asked.links:
            hosts.shape(link)
            for seed in SEEDS:
                for name in CONTESTANTS:
                    runs.run(hosts, link=link, name=name, rate=runs.best_rate(name), seed=seed)
    (asked.out / "sharded_learning.md").write_text(runs.table(asked.links))


class _Runs:
    """Results by link, contestant, learning rate and seed, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def run(self, hosts: WorkerHosts, *, link: int, name: str, rate: float, seed: int) -> None:
        key = _key(link, name, rate, seed)
        if key in self._found:
            return
        # Loads do not change what is learned, which is all that counts without a link.
        around = report.surroundings() if link else {"commit": report.read_git("rev-parse", "HEAD")}
        points = hosts.ask("learn", name=name, rate=rate, seed=seed)[0]
        self._found[key] = {"points": points, "commit": around["commit"], **around}
        self._file.write_text(json.dumps(self._found, indent=1) + "\n")
        print(key, points[-1], flush=True)

    def best_rate(self, name: str) -> float:
        return min(RATES, key=lambda rate: self._last_loss(0, name, rate, TUNING_SEED))

    def table(self, links: Sequence[int]) -> str:
        """Return the rows of all links, and how learning rates were chosen."""
        lines = [
            "# Time to a loss of a sharded model",
            "",
            f"The hosts and the model are those of the steps above, with a mask; {STEPS} steps of"
            " 16 sequences of 64 characters of Shakespeare, AdamW, a warm-up and a cosine. Seconds"
            " count until the held-out loss is at most the mean final loss of FSDP2's own exchange"
            f" plus {ALLOWED_LOSS}; mean of {len(SEEDS)} seeds, or how many of them came to it."
            " Rates were chosen on another seed.",
            "",
            "| Mbit/s | contestant | learning rate | final loss | seconds to the loss"
            " | torch over it | seconds in all |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for link in links:
            lines += self._rows(link)
        lines += ["", "Loss at the end, by learning rate:", ""]
        rates = sorted({float(key.split(" | ")[2]) for key in self._found})  # others too, if tried
        lines += [
            "| contestant | " + " | ".join(f"{rate:g}" for rate in rates) + " |",
            "| --- |" + " --- |" * len(rates),
        ]
        for name in CONTESTANTS:
            keys = (_key(0, name, rate, TUNING_SEED) for rate in rates)
            found = (self._found.get(key, {"points": ()})["points"] for key in keys)
            losses = (f"{points[-1][2]:.3f}" if points else "–" for points in found)
            lines.append(f"| {_title(name)} | " + " | ".join(losses) + " |")
        commits = sorted({one["commit"] for one in self._found.values() if "load" in one})
        lines += ["", f"Timed on commit {', '.join(commits)}."]
        return "\n".join(lines) + "\n"

    def _rows(self, link: int) -> list[str]:
        target = statistics.mean(self._last_losses(link, "torch")) + ALLOWED_LOSS
        peer = [_seconds_to(points, target) for points in self._timed(link, "torch")]
        rows = []
        for name in CONTESTANTS:
            losses = self._last_losses(link, name)
            seconds = [_seconds_to(points, target) for points in self._timed(link, name)]
            reached = [one for one in seconds if one is not None]
            whole = statistics.mean(points[-1][1] for points in self._timed(link, name))
            text, ratio = f"{len(reached)} of {len(seconds)}", "–"
            if len(reached) == len(seconds) and None not in peer:
                text = f"{statistics.mean(reached):.1f}"
                ratio = f"{sum(filter(None, peer)) / sum(reached):.1f}"
            rows.append(
                f"| {link} | {_title(name)} | {self.best_rate(name):g} |"
                f" {statistics.mean(losses):.3f} ± {statistics.stdev(losses):.3f} | {text} |"
                f" {ratio} | {whole:.1f} |"
            )
        return rows

    def _timed(self, link: int, name: str) -> list[Sequence[Sequence[float]]]:
        rate = self.best_rate(name)
        return [self._found[_key(link, name, rate, seed)]["points"] for seed in SEEDS]

    def _last_losses(self, link: int, name: str) -> list[float]:
        return [points[-1][2] for points in self._timed(link, name)]

    def _last_loss(self, link: int, name: str, rate: float, seed: int) -> float:
        loss: float = self._found[_key(link, name, rate, seed)]["points"][-1][2]
        return loss


def _seconds_to(points: Sequence[Sequence[float]], target: float) -> float | None:
    return next((seconds for _, seconds, loss in points if loss <= target), None)


def _key(link: int, name: str, rate: float, seed: int) -> str:
    return f"{link} | {name} | {rate:g} | {seed}"


def _title(name: str) -> str:
    return f"ours, {name}" if name in OURS else name


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.sharded_learning",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument("--links", type=int, nargs="+", default=list(LINKS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
