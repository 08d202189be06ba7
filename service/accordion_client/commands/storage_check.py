"""The part of `doctor` about storages: jobs that wait for theirs, where jobs keep checkpoints, and
which of these places this machine does not find.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from accordion_client.commands.findings import Finding
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.domain.jobs.statuses import Reason
from accordion_service.schemas.format import format_storage

if TYPE_CHECKING:
    from accordion_client import Client
    from accordion_service.schemas.jobs import JobView

MAX_UNFINISHED = 200
"""Unfinished jobs whose storages are looked at, the newest first: one page of the list."""
MAX_NEWEST = 50
"""Newest jobs, ended ones included, whose storages are looked at as well."""
MAX_STORAGES = 10
"""Storages that are looked at; more are counted."""
LOOK_S = 5.0
"""Maximum time to look for one: a mount whose server is gone does not respond."""
_NAMED_JOBS = 3
"""Jobs that are named for one storage, or that wait for theirs; more are counted."""
_ELSEWHERE = "; nothing is wrong if the service runs in a container or behind a tunnel"


def read_storage_jobs(client: Client) -> list[JobView]:
    """Read the jobs whose storages are looked at, newest first.

    Raises:
        ClientError: the service does not respond, or refuses.
    """
    unfinished = client.jobs(status=[status.value for status in UNFINISHED], limit=MAX_UNFINISHED)
    waiting = client.jobs(reason=[Reason.WAITING_FOR_STORAGE.value], limit=MAX_NEWEST)
    newest = client.jobs(limit=MAX_NEWEST)
    jobs = {job.id: job for page in (newest, unfinished, waiting) for job in page.items}
    return sorted(jobs.values(), key=lambda job: job.created_at, reverse=True)


def check_storages(jobs: Sequence[JobView], *, is_local: bool, is_own: bool) -> Iterator[Finding]:
    """Yield what is known of each storage of these jobs.

    Args:
        jobs: jobs, newest first.
        is_local: whether the address of the service is on this machine, so that directories are
            looked for here.
        is_own: whether `accordion up` of this home directory runs it. Otherwise it may be in a
            container or at the other end of a tunnel, where the directories are others.
    """
    yield from _list_waiting([job for job in jobs if job.reason == Reason.WAITING_FOR_STORAGE])
    jobs_by_storage: dict[str, list[JobView]] = {}
    for job in jobs:
        if job.storage is not None:
            root = job.storage.place.split(f"/{job.id}")[0]
            jobs_by_storage.setdefault(root, []).append(job)
    if not jobs_by_storage:
        message = "not verified yet; checked when a job with two or more workers starts"
        yield Finding(name="storage", state="note", message=message)
    storages = list(jobs_by_storage.items())
    for root, users in storages[:MAX_STORAGES]:
        yield _check_storage(root, users, is_local=is_local, is_own=is_own)
    more = len(storages) - MAX_STORAGES
    if more > 0:
        message = f"{more} more, used by older jobs, {'was' if more == 1 else 'were'} not checked"
        yield Finding(name="storage", state="note", message=message)


def _list_waiting(jobs: Sequence[JobView]) -> Iterator[Finding]:
    """Yield what jobs say that wait for their storage."""
    for job in jobs[:_NAMED_JOBS]:
        message = f"job {job.name} waits: {job.message}"
        yield Finding(name="storage", state="bad", message=message)
    more = len(jobs) - _NAMED_JOBS
    if more > 0:
        waiting = "1 more job waits for its" if more == 1 else f"{more} more jobs wait for their"
        message = f"{waiting} storage; see 'accordion list --reason WAITING_FOR_STORAGE'"
        yield Finding(name="storage", state="bad", message=message)


def _check_storage(root: str, users: Sequence[JobView], *, is_local: bool, is_own: bool) -> Finding:
    """Describe one storage; it is bad if unfinished jobs need it and this machine lacks it."""
    folder = unquote(root.removeprefix("file://")) if root.startswith("file://") else root
    problem = _look_for(folder) if is_local and "://" not in folder else ""
    if problem:
        is_needed = is_own and any(job.status in UNFINISHED for job in users)
        keeps = "keeps its" if len(users) == 1 else "keep their"
        message = (
            f"{_name_jobs(users)} {keeps} checkpoints in {folder}, which {problem}; mount it, or"
            " copy what it had to the storage that the service has now (ACCORDION_STORAGE)"
            f"{'' if is_own else _ELSEWHERE}"
        )
        return Finding(name="storage", state="bad" if is_needed else "note", message=message)
    newest, used = users[0], users[0].storage
    place = root if used is None else format_storage(used)
    others = len(users) - 1
    have = "job has a folder" if others == 1 else "jobs have folders"
    also = f"; {others} other {have} in {root}" if others else ""
    message = f"job {newest.name} keeps its checkpoints in {place}{also}"
    return Finding(name="storage", state="ok", message=message)


def _look_for(folder: str) -> str:
    """Return what is wrong with a directory; empty if it is there."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_examine(Path(folder))), daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return found[0] if found else f"did not respond within {LOOK_S:g} s"


def _examine(folder: Path) -> str:
    try:
        return "" if folder.is_dir() else "was not found on this machine"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _name_jobs(jobs: Sequence[JobView]) -> str:
    more = len(jobs) - _NAMED_JOBS
    named = ", ".join(job.name for job in jobs[:_NAMED_JOBS])
    return f"job{'s' if len(jobs) > 1 else ''} {named}{f' and {more} more' if more > 0 else ''}"
