"""Steps of a sharded model on two hosts of two workers, beside FSDP2 itself:
`python -m tests.bench.sharded [--links RATE...]`.

A link's name is its Mbit/s, 0 for no limit. FSDP2's traffic within a host stays there; what crosses
the link are the gradients of each worker's part. The result goes to `results/sharded.json` and
`.md`. It needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.hosts import WorkerHosts
from tests.bench.timing import Spread

RESULTS = Path(__file__).with_name("results")
PROGRAM = "tests.bench.sharded_worker"
ROUNDS_OF_16 = {"ours, 4 bits, rounds of 16": 16}
STEPS: Mapping[int, Mapping[str, int]] = {
    10: {"torch": 1, "torch, fp16": 1, "ours, rank 4": 2, "ours, 4 bits": 1, **ROUNDS_OF_16},
    100: {
        "torch": 1,
        "torch, fp16": 1,
        "ours, none": 1,
        "ours, rank 4": 4,
        "ours, 4 bits": 3,
        **ROUNDS_OF_16,
    },
    0: {
        "torch": 4,
        "torch, fp16": 4,
        "ours, none": 4,
        "ours, rank 4": 4,
        "ours, 4 bits": 4,
        **ROUNDS_OF_16,
    },
}
"""Steps of each contestant in a round, by link; 16 in a row hold one exchange of local steps."""
ROUNDS = 7


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the result."""
    asked = _parse(arguments)
    around = report.surroundings()
    found = _read(asked.out / "sharded.json")
    with WorkerHosts(4, per_host=2, program=PROGRAM) as hosts:
        hosts.ask("check")
        for link in asked.links:
            hosts.shape(link)
            rounds = hosts.ask("measure", steps=STEPS[link], rounds=asked.rounds)[0]
            found[str(link)] = {"seconds": rounds, **around}
            print(json.dumps({link: rounds}), flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "sharded.json").write_text(json.dumps(found, indent=2) + "\n")
    (asked.out / "sharded.md").write_text(table(found))


def table(found: Mapping[str, Any]) -> str:
    """Return the table of all links that were measured."""
    lines = [
        "# Steps of a sharded model",
        "",
        "Two hosts of two workers, on two processors in all; FSDP2 shards a transformer of 3.4"
        " million parameters over the workers of a host, and the hosts hold replicas. Seconds of a"
        " step, and how many times as long one with torch's own exchange takes: median and range of"
        f" {ROUNDS} rounds, in which the contestants take turns.",
        "",
        "| Mbit/s between hosts | contestant | seconds | torch over it | torch in fp16 over it |",
        "| --- | --- | --- | --- | --- |",
    ]
    for link, row in found.items():
        for name in row["seconds"][0]:
            own = Spread.of([one[name] for one in row["seconds"]])
            ratios = [
                Spread.of([one[peer] / one[name] for one in row["seconds"]])
                for peer in ("torch", "torch, fp16")
            ]
            cells = " | ".join(f"{r.median:.2f} ({r.least:.2f} - {r.most:.2f})" for r in ratios)
            rate = "no limit" if link == "0" else link
            seconds = f"{own.median:.3f} ({own.least:.3f} - {own.most:.3f})"
            lines.append(f"| {rate} | {name} | {seconds} | {cells} |")
    lines.append("")
    lines += [
        f"- {'no limit' if link == '0' else link}: commit {row['commit']}, load {row['load']}"
        for link, row in found.items()
    ]
    return "\n".join(lines) + "\n"


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.sharded", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--links", type=int, nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds (default {ROUNDS})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
