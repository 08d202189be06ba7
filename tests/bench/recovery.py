"""Recovery on both engines and of plain Ray Train.

`python -m tests.bench.recovery [--rounds N] [--rows NAME...]`

Each row is one run: its contestants take turns, on clusters of their own that begin anew for each
measurement, and train the same job at the same pace. After each row of at least three rounds,
`tests/bench/results/recovery.json` and the table beside it are written, so that rows may be
measured at different times; each tells when, at which commit and at what load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import ray

from tests.bench import recovery_stage as stages
from tests.bench.recovery_report import row_of, table, write
from tests.bench.recovery_rows import ROWS, Row
from tests.bench.recovery_task import Recovery
from tests.bench.report import surroundings
from tests.netlab.lab import may_make_hosts

RESULTS = Path(__file__).with_name("results")
KEPT_ROUNDS = 3
"""Fewest rounds that are written to `RESULTS`."""


def main(arguments: Sequence[str]) -> None:
    """Measure the chosen rows; print them, and write each as soon as it is complete."""
    asked = _parsed(arguments)
    chosen = [row for row in ROWS if not asked.rows or row.name in asked.rows]
    is_complete = asked.rounds >= KEPT_ROUNDS and not asked.only
    folder = asked.out or (RESULTS if is_complete else None)
    rows = []
    for row in chosen:
        around = surroundings()
        around["versions"]["ray"] = ray.__version__
        around["date"] = f"{datetime.now(tz=UTC):%Y-%m-%d}"
        measured = row_of(row, measure(row, asked.rounds, asked.only))
        rows.append({**measured, "measured": {**around, "rounds": asked.rounds}})
        if folder is not None:
            write(folder, rows[-1])
    print(f"\n{table(rows)}")
    if folder is not None:
        print(f"\nwritten to {folder}")


def measure(row: Row, rounds: int, only: str | None) -> list[dict[str, Recovery]]:
    """For each round, how each contestant did; one that did not go on is missing."""
    if row.apart and not may_make_hosts():
        print(f"{row.name}: not measured: making network namespaces needs root", flush=True)
        return []
    names = [name for name in row.contestants if only in (None, name)]
    found: list[dict[str, Recovery]] = []
    for _ in range(rounds):
        found.append({})
        for name in names:
            try:
                found[-1][name] = measure_once(row, name)
                print(f"{row.name} {name}: {found[-1][name]}", flush=True)
            except TimeoutError as error:
                print(f"{row.name} {name}: {error}", flush=True)
    return found


def measure_once(row: Row, contestant: str) -> Recovery:
    """Measure one job of one contestant.

    Raises:
        TimeoutError: the job did not start, or did not go on.
    """
    who = stages.CONTESTANTS[contestant]
    with stages.Stage(who, nodes=row.nodes, size=row.size, apart=row.apart) as stage:
        return row.measure(stage)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.recovery", description=__doc__.partition("\n")[0]
    )
    add, names = parser.add_argument, [row.name for row in ROWS]
    add("--rounds", type=int, default=3, help="how often each contestant is measured")
    add("--rows", nargs="+", default=[], choices=names, metavar="NAME", help="measure these alone")
    add("--only", choices=list(stages.CONTESTANTS), help="measure one contestant alone")
    add(
        "--out",
        type=Path,
        help="folder for the results, for any number of rounds",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
