"""The library against its peers, as ratios in pairs: `python -m tests.bench.compare [--quick]
[--rows NAME...]`.

A complete run writes `tests/bench/results/library.json` and a table beside it; a quick one or one
of some rows only prints, unless `--out` names a folder. The rows of the training step need root,
for two hosts with shaped links.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.bench import encode_rows, report, statistic_row, step_rows
from tests.bench.peers_package import describe_package, find_clone
from tests.bench.targets import TARGETS, Target, chosen
from tests.netlab.lab import may_make_hosts

RESULTS = Path(__file__).with_name("results")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep a complete run."""
    asked = _parsed(arguments)
    targets = chosen(asked.rows)
    torch.set_num_threads(1)
    around = report.surroundings()
    rows: dict[str, dict[str, Any]] = {}
    for target, row in _rows(targets, quick=asked.quick):
        rows[target.row] = row
        reached = row["note"] if row["reached"] is None else f"{row['reached']:.2f}"
        print(f"{target.row}: {reached} (reach {row['reach']})", flush=True)
    command = shlex.join(["python", "-m", "tests.bench.compare", *arguments])
    found = {"command": command, **around, "rows": [rows[target.row] for target in targets]}
    print(f"\n{report.table(found['rows'])}")
    folder = asked.out or (RESULTS if not asked.quick and len(targets) == len(TARGETS) else None)
    if folder is not None:
        report.write(folder, found)
        print(f"\nwritten to {folder}")


def _rows(targets: Sequence[Target], *, quick: bool) -> Iterator[tuple[Target, dict[str, Any]]]:
    steps = [target for target in targets if target.row.startswith("step-")]
    rest = [target for target in targets if target not in steps]
    for target in rest:
        yield target, _row(target, quick=quick)
    if steps and not may_make_hosts():
        yield from (
            (target, report.missing_row(target, "making network namespaces needs root"))
            for target in steps
        )
        return
    absent = [target for target in steps if target.row.endswith("-package") and not find_clone()]
    yield from ((target, report.missing_row(target, describe_package())) for target in absent)
    steps = [target for target in steps if target not in absent]
    for target, measured in step_rows.measure(steps, quick=quick):
        yield target, report.row_of(target, measured)


def _row(target: Target, *, quick: bool) -> dict[str, Any]:
    measure = statistic_row.measure if target.row == "statistic" else encode_rows.measure
    try:
        return report.row_of(target, measure(target, quick=quick))
    except LookupError as error:
        return report.missing_row(target, str(error))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.compare", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it works, not how fast it is"
    )
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="NAME", help="rows, or how their names begin"
    )
    parser.add_argument("--out", type=Path, help="folder for library.json and library.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
