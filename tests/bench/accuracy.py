"""Time, bytes and accuracy on real links, by us and by peers' own code:
`python -m tests.bench.accuracy [--links NAME...] [--tasks NAME...] [--quick]`.

Four hosts train the jobs of `tests.bench.learning`. First the learning rates that no simulation has
chosen are chosen here, on links without a limit, with the same grid and seeds; then every
contestant trains at its own best one. Each run is kept in `results/accuracy.json` when it has
ended and is not repeated, so a bench that was interrupted goes on. It needs root; ACCORDION_DATA
has the data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from tests.bench import report
from tests.bench.accuracy_peers import PEERS
from tests.bench.accuracy_table import write_table
from tests.bench.hosts import WorkerHosts
from tests.bench.learning import (
    ALL,
    BY_RATE,
    EVERY_STEP,
    FRESH,
    LOCAL,
    NONE,
    RECIPES,
    TRIED,
    TWO_LEVEL,
    WORKERS,
    Recipe,
)
from tests.netlab.lab import may_make_hosts

RESULTS = Path(__file__).with_name("results")
QUICK = Path("build/accuracy-quick")
WORKER = "tests.bench.accuracy_worker"
OF_DDP = "none, every step"
"""Whose learning rate contestants take that learn what it learns, or nearly so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Links of all hosts."""

    rate: int
    """Mbit/s; 0 for no limit."""
    delay_ms: int = 0
    """From one host to another."""
    seeds: Sequence[int] = FRESH[:1]

    @property
    def name(self) -> str:
        """Name in the table: Mbit/s and, after the plus sign, ms."""
        return f"{self.rate}+{self.delay_ms}" if self.delay_ms else str(self.rate)


LINKS = (
    Link(rate=100, seeds=FRESH),
    Link(rate=25),
    Link(rate=100, delay_ms=10),
    Link(rate=1000),
)
"""What is learned does not depend on the link, except with `cost_aware`, so all seeds run on the
first one only.
"""
UNSHAPED = Link(rate=0, seeds=TRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A job and who trains it."""

    target: float
    """The metric that is to be reached."""
    ours: Mapping[str, Mapping[str, str]]
    """Changes of the recipe by contestant; those of `tests.bench.learning` have their rate from
    there.
    """
    peers: Sequence[str]
    same_rate: Sequence[str] = field(default=("DDP", "DDP, fp16 hook", "torchft's DDP"))


ADACOMP = {"AdaComp": {**EVERY_STEP, "compression": "{method: adacomp}"}}
_IMAGES, _TRANSFORMER = ALL["images"].contestants, ALL["transformer"].contestants
_EVERYWHERE = ("DDP", "DDP, fp16 hook", "torchft's DDP", "epfml's PowerSGD rank 4")


def _pick(contestants: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: contestants[name] for name in names}


CONTESTS = {
    "images": Contest(
        target=0.42,
        ours={
            **NONE,
            **_pick(_IMAGES, "PowerSGD rank 4", "PowerSGD rank 1"),
            **TWO_LEVEL,
            "two_level, rank 4 and 1, batch 128 and 512": {
                **TWO_LEVEL["two_level, rank 4 and 1"],
                "batch": "{low: 128, high: 512}",
            },
            **BY_RATE,
            **ADACOMP,
            **_pick(
                _IMAGES,
                "4 local steps, 32 after the drop, 4 bits",
                "4 local steps, 32 after the drop, 2 bits",
            ),
            "budget of 50, 4 bits": {LOCAL: "{budget: 50}"},
            "cost_aware, at most 32 local steps, 4 bits": {
                LOCAL: "{low: 32}",
                "policy": "{name: cost_aware, window: {steps: 16}}",
            },
        },
        peers=(
            *_EVERYWHERE,
            "PyTorch's post-local SGD, period 4",
            "torchft's DiLoCo, 8 steps",
            "torchft's DiLoCo, 32 steps",
        ),
    ),
    "transformer": Contest(
        target=2.3,
        ours={
            **NONE,
            **_pick(_TRANSFORMER, "PowerSGD rank 4", "QSGD 4 bits, every step"),
            "two_level, rank 4 and 1": TWO_LEVEL["two_level, rank 4 and 1"],
            **ADACOMP,
            **_pick(
                _TRANSFORMER,
                "30 % start, 15 local steps and more, 4 bits",
                "30 % start, 15 local steps and more, 2 bits",
                "10 % start, 15 local steps and more, 4 bits",
                "25 local steps, 4 bits",
            ),
            "30 % start, budget of 15, 4 bits": {LOCAL: "{budget: 15, start_steps: 144}"},
            "cost_aware, at most 20 local steps, 4 bits": {
                LOCAL: "{low: 20}",
                "policy": "{name: cost_aware, window: {steps: 16}}",
            },
        },
        peers=(
            *_EVERYWHERE,
            "PyTorch's post-local SGD, 30 % start, period 15",
            "torchft's DiLoCo, 15 steps",
            "torchft's DiLoCo, 60 steps",
        ),
    ),
}


class Book:
    """What has been measured, in a file that is complete after every run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        found = json.loads(file.read_text()) if file.exists() else {}
        self.runs: list[dict[str, Any]] = found.get("runs", [])

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        """Return the run with these values."""
        return next((run for run in self.runs if wanted.items() <= run.items()), None)

    def add(self, run: dict[str, Any]) -> None:
        """Keep a run, and write the table anew."""
        self.runs.append(run)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"runs": self.runs}) + "\n")
        self._file.with_suffix(".md").write_text(write_table(self.runs, _describe_contests()))


def _describe_contests() -> dict[str, dict[str, Any]]:
    return {
        name: {"target": one.target, "smaller": ALL[name].smaller, "metric": ALL[name].metric}
        for name, one in CONTESTS.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Run what is asked for and was not run before."""
    asked = _parse(arguments)
    if not may_make_hosts():
        sys.exit("making network namespaces needs root; run this as root")
    around = report.surroundings()
    # What is only tried must not stand among results, nor count as run.
    out = asked.out or (QUICK if asked.quick else RESULTS)
    book = Book(out / "accuracy.json")
    bench = Bench(book, around, epochs=1 if asked.quick else None)
    for name in asked.tasks:
        contestants = list(CONTESTS[name].ours) + [
            peer for peer in CONTESTS[name].peers if peer in PEERS
        ]
        contestants = [one for one in contestants if not asked.only or one in asked.only]
        if not asked.quick:
            bench.choose_rates(name, contestants)
        for link in LINKS:
            if link.name in asked.links:
                bench.run_link(name, contestants, link)


class Bench:
    """Runs contestants on hosts; `epochs` shortens all runs, for a try."""

    def __init__(self, book: Book, around: Mapping[str, Any], *, epochs: int | None) -> None:
        self._book, self._around, self._epochs = book, around, epochs

    def choose_rates(self, task: str, contestants: Sequence[str]) -> None:
        """Find the best learning rate of each contestant that has none yet."""
        if all(_source_of_rate(task, contestant) is not None for contestant in contestants):
            return
        with WorkerHosts(WORKERS, program=WORKER) as hosts:
            for contestant in contestants:
                if _source_of_rate(task, contestant) is not None:
                    continue
                while rates := ALL[task].choose_rates(self._means(task, contestant)):
                    for rate in rates:
                        for seed in TRIED:
                            self._run(hosts, UNSHAPED, task, contestant, rate=rate, seed=seed)

    def run_link(self, task: str, contestants: Sequence[str], link: Link) -> None:
        """Run all contestants on a link."""
        with WorkerHosts(WORKERS, delay_ms=link.delay_ms, program=WORKER) as hosts:
            self._warm_up(hosts, task)
            hosts.shape(link.rate)
            for seed in link.seeds:
                for contestant in contestants:
                    rate = self._find_rate(task, contestant)
                    self._run(hosts, link, task, contestant, rate=rate, seed=seed)

    def _warm_up(self, hosts: WorkerHosts, task: str) -> None:
        """Let the workers load their data and code, before anybody is timed."""
        spec = build_spec(ALL[task], NONE[OF_DDP], rate=ALL[task].rates[0], seed=0)
        spec["training"]["epochs"] = 1
        for peer in (None, "DDP"):
            _ask(hosts, task, spec, peer=peer)

    def _find_rate(self, task: str, contestant: str) -> float:
        if (source := _source_of_rate(task, contestant)) is not None:
            return source
        if self._epochs is not None:
            return ALL[task].rates[0]
        return ALL[task].find_best(self._means(task, contestant))

    def _means(self, task: str, contestant: str) -> dict[float, float]:
        """Return the mean metric by learning rate that was tried with all seeds."""
        values: dict[float, list[float]] = {}
        for run in self._book.runs:
            if (run["task"], run["contestant"], run["link"]) == (task, contestant, UNSHAPED.name):
                metric = run["epochs"][-1]["metric"] if not run["failed"] else None
                worst = math.inf * ALL[task].sign
                values.setdefault(run["rate"], []).append(worst if metric is None else metric)
        return {rate: fmean(found) for rate, found in values.items() if len(found) == len(TRIED)}

    def _run(
        self,
        hosts: WorkerHosts,
        link: Link,
        task: str,
        contestant: str,
        *,
        rate: float,
        seed: int,
    ) -> None:
        wanted = {
            "task": task,
            "contestant": contestant,
            "link": link.name,
            "rate": rate,
            "seed": seed,
        }
        if self._book.find(**wanted) is not None:
            return
        changes = CONTESTS[task].ours.get(contestant, EVERY_STEP)
        spec = build_spec(ALL[task], changes, rate=rate, seed=seed)
        if self._epochs is not None:
            spec["training"]["epochs"] = self._epochs
        answers = _ask(hosts, task, spec, peer=contestant if contestant in PEERS else None)
        first = answers[0]
        run = {
            **wanted,
            "epochs": first["epochs"],
            "sent": fmean(answer["sent"] for answer in answers),
            "failed": first["failed"],
            "commit": self._around["commit"],
            "load": self._around["load"],
        }
        self._book.add(run)
        last = first["epochs"][-1] if first["epochs"] else {}
        end = [last.get("seconds"), last.get("metric"), first["failed"]]
        print(json.dumps([link.name, task, contestant, rate, seed, *end]), flush=True)


def _ask(
    hosts: WorkerHosts, task: str, spec: Mapping[str, Any], *, peer: str | None
) -> list[dict[str, Any]]:
    """Return what each host says of a run."""
    with tempfile.TemporaryDirectory() as storage:
        return hosts.ask(
            "train",
            spec=spec,
            peer=peer,
            metric=ALL[task].metric,
            workers=WORKERS,
            port=random.randint(20_000, 50_000),
            storage=storage,
        )


def _source_of_rate(task: str, contestant: str) -> float | None:
    """Return the learning rate that simulations have chosen; None without one."""
    name = OF_DDP if contestant in CONTESTS[task].same_rate else contestant
    rows = json.loads((RESULTS / "learning.json").read_text())
    found = [row["rate"] for row in rows if (row["recipe"], row["contestant"]) == (task, name)]
    return found[0] if found else None


def build_spec(
    recipe: Recipe, changes: Mapping[str, str], *, rate: float, seed: int
) -> dict[str, Any]:
    """Return the job of a recipe with changes, for hosts."""
    spec: dict[str, Any] = yaml.safe_load((RECIPES / recipe.file).read_text())
    spec.pop("code", None)
    settings = {
        **changes,
        "training.optimizer.lr": str(rate),
        "training.seed": str(seed),
        "training.evaluate_every_epochs": "1",
        "task.options.data": str(Path(os.environ["ACCORDION_DATA"], recipe.data)),
        "workers": f"{{min: {WORKERS}, max: {WORKERS}, balance: false}}",
        "checkpoint": "{every_epochs: 1000}",
    }
    for key, value in settings.items():
        *above, last = key.split(".")
        place = spec
        for part in above:
            place = place[part]
        place[last] = yaml.safe_load(value)
    return spec


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.accuracy", description=(__doc__ or "").partition("\n")[0]
    )
    names = [link.name for link in LINKS]
    parser.add_argument("--links", nargs="+", choices=names, default=names)
    parser.add_argument("--tasks", nargs="+", choices=tuple(CONTESTS), default=tuple(CONTESTS))
    parser.add_argument("--only", nargs="+", default=(), help="contestants (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="one epoch a run: shows that it works, and no more"
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder of the results (default: {RESULTS.name}; quick: {QUICK})"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
