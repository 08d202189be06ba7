"""What must hold after a run, whatever was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from service.client import Client
from service.store.database import Database
from service.store.repository import Repository
from tests.chaos.owners import OwnedJob


def find_violations(jobs: Sequence[OwnedJob], client: Client, database_url: str) -> list[str]:
    """Return a sentence for each law that a job broke."""
    database = Database(database_url)
    try:
        repository = Repository(database)
        return [
            f"{job.owner}-{job.number} ({job.plan}): {sentence}"
            for job in jobs
            for sentence in _check_job(job, client, repository)
        ]
    finally:
        database.close()


def _check_job(job: OwnedJob, client: Client, repository: Repository) -> Iterable[str]:
    found = client.job(job.id)
    if found.status != job.expected:
        yield f"is {found.status} ({found.reason}: {found.message}), not {job.expected}"
    epochs = [row.epoch for row in client.all_epochs(job.id)]
    if epochs != list(range(len(epochs))):
        yield f"has the epochs {epochs}"
    if found.status == "SUCCEEDED" and len(epochs) != job.epochs:
        yield f"has {len(epochs)} epochs of {job.epochs}"
    samples = Counter(row.samples for row in client.all_epochs(job.id))
    if len(samples) > 1:
        yield f"trained epochs of different lengths: {dict(samples)}"
    rows = repository.events(job.id, after=0, limit=100_000)
    yield from _check_events([(row.seq, row.time) for row in rows], "its events")
    yield from _check_events(
        [(event.seq, event.time.timestamp()) for event in job.seen], "the events of its watcher"
    )
    if found.ended_at is not None and len(job.seen) != len(rows):
        yield f"its watcher received {len(job.seen)} of {len(rows)} events"
    if job.plan == "override" and not job.refused:
        yield from _check_override(job, client)


def _check_events(events: Sequence[tuple[int, float]], whose: str) -> Iterable[str]:
    numbers = [number for number, _ in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"{whose} have the numbers {numbers}"
    back = [number for (_, at), (number, then) in pairwise(events) if then < at]
    if back:
        yield f"{whose} go back in time at {back}"


def _check_override(job: OwnedJob, client: Client) -> Iterable[str]:
    overrides = client.overrides(job.id).items
    if len(overrides) != 1:
        yield f"has {len(overrides)} overrides of one that was requested"
    for override in overrides:
        levels = {
            level
            for row in client.all_epochs(job.id)
            if override.epoch is not None and row.epoch > override.epoch
            for level in row.level_by_layer.values()
        }
        if override.state not in {"APPLIED", "EXPIRED"}:
            yield f"its override is {override.state}: {override.message}"
        elif levels - {"low"}:
            yield f"trained at the levels {sorted(levels)} after the override to low"
