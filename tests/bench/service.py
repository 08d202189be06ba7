"""The control plane under load, on both databases.

`python -m tests.bench.service [--databases NAME...] [--rows NAME...] [--jobs N] [--out FOLDER]`

Each database holds the history of 100,000 ended jobs. The api and the scheduler are processes of
their own, on this machine like the clients; the cluster under the scheduler is scripted.
The table is printed at the end; with `--out` it is written as `service.md`, beside `service.json`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.report import surroundings
from tests.bench.service_report import table, write
from tests.bench.service_rows import ROWS
from tests.bench.service_stage import Stage
from tests.conftest import free_port
from tests.postgres import find_program, run_postgres

RESULTS = Path(__file__).with_name("results")
DATABASES = ("sqlite", "postgresql")
JOBS = 100_000
_SERVER = {"max_connections": "200", "timezone": "UTC"}
"""Unlike in the tests, the server writes to the disk before it confirms."""


def main(arguments: Sequence[str]) -> None:
    """Measure the chosen rows on the chosen databases; print and write them."""
    asked = _parse(arguments)
    chosen = [row for row in ROWS if not asked.rows or row.name in asked.rows]
    found: dict[str, dict[str, Any]] = {}
    around = {**surroundings(), "date": f"{datetime.now(tz=UTC):%Y-%m-%d}", "jobs": asked.jobs}
    for database in asked.databases:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            _url_of(database) as url,
            Stage(Path(folder), url, jobs=asked.jobs) as stage,
        ):
            for row in chosen:
                outcome = row.measure(stage)
                found.setdefault(row.name, {})[database] = outcome
                print(f"{database} {row.name}: {outcome.text}", flush=True)
                if asked.out is not None:
                    write(asked.out, [row for row in chosen if row.name in found], found, around)
    print(f"\n{table([row for row in chosen if row.name in found], found)}")
    if asked.out is not None:
        print(f"\nwritten to {asked.out}")


@contextmanager
def _url_of(database: str) -> Iterator[str]:
    """URL of an empty database; empty for the file in the home directory."""
    if database == "sqlite":
        yield ""
        return
    initdb = find_program("initdb")
    if initdb is None:
        sys.exit("PostgreSQL is not installed; install it, or give --databases sqlite")
    with run_postgres(initdb, free_port, _SERVER) as server:
        yield server.create_database(migrated=False)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.service", description=(__doc__ or "").partition("\n")[0]
    )
    add, names = parser.add_argument, [row.name for row in ROWS]
    add("--databases", nargs="+", default=list(DATABASES), choices=DATABASES)
    add("--rows", nargs="+", default=[], choices=names, metavar="NAME", help="measure these alone")
    add("--jobs", type=int, default=JOBS, help="ended jobs in the database")
    add("--out", type=Path, help=f"folder for the results, such as {RESULTS}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
