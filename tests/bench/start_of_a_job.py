"""Where the time goes from the start of an attempt to its first step: `python -m
tests.bench.start_of_a_job ADDRESS`.

Needs a Ray cluster of this machine at ADDRESS, with what a driver needs in the environment
(RAY_AUTH_MODE, RAY_AUTH_TOKEN). Runs jobs of two workers one after the other and prints a line for
each: seconds until each part was seen first, and the CPU seconds that the job's processes had used
at the first step: those hardly depend on who else computes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import Cursor, Drained, JobSpec, Launch, Started

SPEC = JobSpec.model_validate({"task": {"name": "digits-mlp"}, "workers": {"min": 2, "max": 2}})
JOBS = 3
TITLES = {"supervisor": "ray::Supervisor", "workers": "ray::Worker"}
"""Ray names a process after its actor when that is there."""
COLUMNS = ("supervisor", "workers", "loop", "started", "first step")
USERS = tuple(TITLES)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    parent: int
    text: str
    cpu_s: float


def main(address: str) -> None:
    """Print the table."""
    backend = RayBackend(address=address)
    backend.nodes()
    print(row("job", [*COLUMNS, *(f"CPU {user}" for user in USERS)]))
    print(row("---", ["---"] * (len(COLUMNS) + len(USERS))))
    for number in range(JOBS):
        seconds, cpu = measured(backend, address)
        print(
            row(
                number,
                [f"{seconds[name]:.1f}" for name in COLUMNS]
                + [f"{cpu[name]:.1f}" for name in USERS],
            ),
            flush=True,
        )


def row(first: object, cells: list[str]) -> str:
    """A line of a Markdown table."""
    return f"| {first} | {' | '.join(cells)} |"


def measured(backend: RayBackend, address: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds from the start of a job until each of its parts was seen first; CPU seconds of its
    processes by then.
    """
    with tempfile.TemporaryDirectory() as storage:
        launch = Launch(job_id=uuid.uuid4().hex, attempt=1, workers=2, storage=storage, spec=SPEC)
        begin, seen = time.time(), {}
        backend.start(launch)
        while not set(COLUMNS) <= set(seen):
            here = [(name, time.time()) for name, cpu_s in cpu_by_part(address).items() if cpu_s]
            told = said(backend.drain(launch.job_id, Cursor()))
            seen = {name: at - begin for name, at in (*here, *told)} | seen
            time.sleep(0.1)
        cpu = cpu_by_part(address)
        backend.remove(launch.job_id)
        while any(cpu_by_part(address).values()):
            time.sleep(0.1)
        return seen, cpu


def said(drained: Drained) -> Iterator[tuple[str, float]]:
    """Yield the parts of the start that the job reported, with their times."""
    yield from (("loop", line.time) for line in drained.logs if line.text.endswith("trains on cpu"))
    yield from (
        ("started", record.time)
        for record in drained.records
        if isinstance(record.payload, Started)
    )
    if drained.progress:
        yield ("first step", drained.progress.time)


def cpu_by_part(address: str) -> dict[str, float]:
    """CPU seconds of the processes that are there now, under a raylet of this cluster."""
    processes = dict(running())
    port = address.rpartition(":")[2]
    raylets = {
        pid
        for pid, found in processes.items()
        if "/raylet/raylet" in found.text and f":{port}" in found.text
    }
    ours = [found for found in processes.values() if found.parent in raylets]
    return {
        name: sum(found.cpu_s for found in ours if title in found.text)
        for name, title in TITLES.items()
    }


def running() -> Iterator[tuple[int, Process]]:
    """All processes of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # proc(5): after the name come state, parent, ..., utime and stime as fields 14 and 15.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            text = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        yield (
            int(folder.name),
            Process(int(fields[1]), text, (int(fields[11]) + int(fields[12])) / TICKS_PER_S),
        )


if __name__ == "__main__":
    main(sys.argv[1])
