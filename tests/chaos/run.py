"""A service of three owners whose parts are killed at random while their jobs run.

`python -m tests.chaos.run [--seed N] [--jobs N] [--database sqlite] [--every LEAST MOST]`

Runs `accordion up` on real Ray, with PostgreSQL a second api and a second scheduler beside it,
submits the jobs, and kills apis, schedulers, the Accordion actor, supervisors, workers, database
connections and the database server until all jobs are where their owners want them. Then it checks
what must hold; the status is 1 if something does not, or if the run lacked something that the laws
are about: a kind of fault, an order of an owner, a preemption, or a job that waits for a quota.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

from accordion_client import Client
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobReads
from tests.chaos.faults import Faults, list_processes
from tests.chaos.history import read_history
from tests.chaos.laws import find_violations
from tests.chaos.owners import (
    LEAST_JOBS,
    NUM_OPENING,
    OWNERS,
    WORKERS_PER_OWNER,
    OwnedJob,
    Owner,
    draw_jobs,
)
from tests.chaos.standbys import Standbys
from tests.conftest import free_port
from tests.e2e.real_up import Up, ready, start, wait_for
from tests.postgres import Postgres, find_program, run_postgres

JOBS = 30
LIMIT_S = 900.0
EVERY_S = (3.0, 8.0)
_SETTINGS = {
    "ACCORDION_PREEMPT_FOR_PRIORITY": "true",
    # A supervisor is killed more often than on any cluster that a job should not give up on.
    "ACCORDION_MAX_LOST_ATTEMPTS": "100",
}
_SAMPLE_S = 1.0
LAST_EVENTS_S = 60.0
"""How long watchers may take to receive the last events of a job."""


def main(arguments: Sequence[str]) -> int:
    """Run once; print what happened, and return the exit status."""
    options = _parse(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    draw = random.Random(seed)
    print(f"seed {seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        _server(options.database) as server,
    ):
        url = server.create_database(migrated=False) if server else ""
        up = start(Path(folder) / "home", ACCORDION_DATABASE_URL=url, **_SETTINGS)
        standbys = None
        try:
            # SQLite is for one machine, where `accordion up` runs one of each.
            standbys = Standbys(up) if server else None
            faults = Faults(up, server, standbys, draw, seconds=tuple(options.every))
            jobs = draw_jobs(draw, options.jobs)
            return _run(up, standbys, faults, jobs=jobs, database_url=url)
        finally:
            up.stop()
            if standbys:
                standbys.stop()


def _run(
    up: Up,
    standbys: Standbys | None,
    faults: Faults,
    *,
    jobs: list[OwnedJob],
    database_url: str,
) -> int:
    url = load_settings(home=up.home, database_url=database_url).database
    urls = [up.client.url, standbys.url if standbys else up.client.url]
    began = time.monotonic()
    with ThreadPoolExecutor(2 * len(jobs)) as pool:
        owners = _add_owners(up.client, urls, pool)
        try:
            acting = _start_jobs(up.client, owners, jobs)
            violations = _kill_until_done(acting, faults, standbys)
            took_s = time.monotonic() - began
            wait_for(lambda: ready(up.client))
            with closing(Database(url)) as database:
                _wait_for_watchers(jobs, database, standbys)
                histories = {job.id: read_history(database, job.id) for job in jobs}
            violations += [*faults.find_missing(), *find_violations(jobs, histories)]
        finally:
            for owner in owners.values():
                owner.give_up()
            wait_for(lambda: ready(up.client))
            for job in up.client.all_jobs():
                if job.ended_at is None:
                    up.client.cancel(job.id)
    wait_for(lambda: not list_processes(up.home, "ray::Worker"))
    print(f"{len(jobs)} jobs in {took_s:.0f} s; {faults.describe()}")
    print("\n".join(violations) or "every job is where its owner wanted it; all laws hold")
    return 1 if violations else 0


def _start_jobs(
    client: Client, owners: dict[str, Owner], jobs: Sequence[OwnedJob]
) -> list[Future[None]]:
    """Submit the opening jobs, and the others once one of them trains."""
    opening = [owners[job.owner].start(job) for job in jobs[:NUM_OPENING]]
    wait_for(lambda: any(job.status == "RUNNING" for job in client.all_jobs()))
    return [*opening, *(owners[job.owner].start(job) for job in jobs[NUM_OPENING:])]


def _kill_until_done(
    acting: Sequence[Future[None]], faults: Faults, standbys: Standbys | None
) -> list[str]:
    """Plant faults until all jobs are where their owners want them; return a violation if that
    takes too long.
    """
    limit = time.monotonic() + LIMIT_S
    while not _have_ended(acting):
        if time.monotonic() > limit:
            return [f"not all jobs were where they belong after {LIMIT_S:g} s"]
        faults.plant_if_due()
        if standbys:
            standbys.restart_dead()
        time.sleep(_SAMPLE_S)
    return []


def _wait_for_watchers(
    jobs: Sequence[OwnedJob], database: Database, standbys: Standbys | None
) -> None:
    """Wait until the watchers have received all events, or for long enough. The last fault may have
    hit the api that they use.
    """
    limit = time.monotonic() + LAST_EVENTS_S
    while True:
        if standbys:
            standbys.restart_dead()
        rows = [(JobReads(database).get(job.id), len(job.seen)) for job in jobs]
        if all(row and num_seen >= row.event_seq for row, num_seen in rows):
            return
        if time.monotonic() > limit:
            return
        time.sleep(_SAMPLE_S)


def _have_ended(futures: Sequence[Future[None]]) -> bool:
    """Return whether all threads have ended.

    Raises:
        Exception: what a thread raised.
    """
    done, others = wait(futures, timeout=0, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return not others


def _add_owners(client: Client, urls: Sequence[str], pool: ThreadPoolExecutor) -> dict[str, Owner]:
    """Add the users; each talks to one of the apis, in turns."""
    owners = {}
    for name, url in zip(OWNERS, cycle(urls), strict=False):
        client.add_user(name)
        client.set_quota(user=name, workers=WORKERS_PER_OWNER)
        token = client.add_token("chaos", user=name).token
        owners[name] = Owner(url, token, pool)
    return owners


@contextmanager
def _server(database: str) -> Iterator[Postgres | None]:
    if database == "sqlite":
        yield None
        return
    initdb = find_program("initdb")
    if initdb is None:
        sys.exit("PostgreSQL is not installed; install it, or give --database sqlite")
    with run_postgres(initdb, free_port) as server:
        yield server


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.run", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--seed", type=int, help="repeat the draws of an earlier run")
    add("--jobs", type=int, default=JOBS, help=f"number of jobs, at least {LEAST_JOBS}")
    add("--database", choices=("postgresql", "sqlite"), default="postgresql")
    add(
        "--every",
        type=float,
        nargs=2,
        default=EVERY_S,
        metavar=("LEAST", "MOST"),
        help="seconds between two kills",
    )
    options = parser.parse_args(arguments)
    if options.jobs < LEAST_JOBS:
        parser.error(f"--jobs is {options.jobs}; at least {LEAST_JOBS} are needed for all plans")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
