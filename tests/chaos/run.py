"""A service of three owners whose parts are killed at random while their jobs run.

`python -m tests.chaos.run [--seed N] [--jobs N] [--database sqlite] [--every LEAST MOST]`

Runs `accordion up` on real Ray, with PostgreSQL a second api and a second scheduler beside it,
submits the jobs, and kills apis, schedulers, the Accordion actor, supervisors, workers, database
connections and the database server until all jobs are where their owners want them. Then it checks
what must hold; the status is 1 if something does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from service.client import Client, ClientError
from service.settings import load_settings
from tests.chaos.faults import Faults, list_processes
from tests.chaos.laws import find_violations
from tests.chaos.owners import OWNERS, OwnedJob, Owner, draw_jobs
from tests.chaos.standbys import Standbys
from tests.conftest import free_port
from tests.e2e.real_up import Up, start, wait_for
from tests.postgres import Postgres, find_program, run_postgres

JOBS = 30
LIMIT_S = 900.0
EVERY_S = (3.0, 8.0)
WORKERS_PER_OWNER = 3
"""Quota of each owner; the cluster has four CPUs."""
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
        # SQLite is for one machine, where `accordion up` runs one of each.
        standbys = Standbys(up) if server else None
        try:
            faults = Faults(up, server, standbys, draw, seconds=tuple(options.every))
            jobs = draw_jobs(draw, options.jobs)
            return _run(up, standbys, faults, jobs=jobs, database_url=url)
        finally:
            if standbys:
                standbys.stop()
            up.stop()


def _run(
    up: Up,
    standbys: Standbys | None,
    faults: Faults,
    *,
    jobs: list[OwnedJob],
    database_url: str,
) -> int:
    database = load_settings(home=up.home, database_url=database_url).database
    urls = [up.client.url, standbys.url if standbys else up.client.url]
    began, violations = time.monotonic(), set[str]()
    with ThreadPoolExecutor(2 * len(jobs)) as pool:
        owners = _add_owners(up.client, urls, pool)
        try:
            threads = [owners[job.owner].start(job) for job in jobs]
            while not _have_ended([acting for acting, _ in threads]):
                faults.plant_if_due()
                if standbys:
                    standbys.restart_dead()
                violations |= _check_quotas(up.client)
                if time.monotonic() - began > LIMIT_S:
                    violations.add(f"not all jobs were where they belong after {LIMIT_S:g} s")
                    break
                time.sleep(_SAMPLE_S)
            took_s = time.monotonic() - began
            wait_for(lambda: up.client.ready().ready)
            pairs = zip(jobs, threads, strict=True)
            ended = [watching for job, (_, watching) in pairs if job.expected != "PAUSED"]
            wait(ended, timeout=LAST_EVENTS_S)
            violations |= set(find_violations(jobs, up.client, database))
        finally:
            for owner in owners.values():
                owner.give_up()
            wait_for(lambda: up.client.ready().ready)
            for job in up.client.all_jobs():
                if job.ended_at is None:
                    up.client.cancel(job.id)
    wait_for(lambda: not list_processes(up.home, "ray::Worker"))
    planted = ", ".join(f"{count} {fault}" for fault, count in sorted(faults.planted.items()))
    print(f"{len(jobs)} jobs in {took_s:.0f} s; killed: {planted}")
    print("\n".join(sorted(violations)) or "every job is where its owner wanted it; all laws hold")
    return 1 if violations else 0


def _have_ended(futures: Sequence[Future[None]]) -> bool:
    """Return whether all threads have ended.

    Raises:
        Exception: what a thread raised.
    """
    done, others = wait(futures, timeout=0, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return not others


def _check_quotas(client: Client) -> set[str]:
    try:
        quotas = client.quotas().items
    except ClientError:  # the api was killed
        return set()
    return {
        f"the jobs of {quota.user} hold {quota.used.workers} workers of {quota.workers}"
        for quota in quotas
        if quota.workers and quota.used and quota.used.workers > quota.workers
    }


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
    add("--jobs", type=int, default=JOBS, help="number of jobs")
    add("--database", choices=("postgresql", "sqlite"), default="postgresql")
    add(
        "--every",
        type=float,
        nargs=2,
        default=EVERY_S,
        metavar=("LEAST", "MOST"),
        help="seconds between two kills",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
