"""What the fault tests take for the history of a job, from what its workers wrote down; needs no
Ray.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import JobSpec, Launch, Record, Started
from tests.elastic.conftest import Life
from tests.elastic.faults import Watched, job
from tests.elastic.watched import Step


def watched(folder: Path, started: list[tuple[float, int]], lines: list[Step]) -> Watched:
    """A job of which is known when its groups told that they started, with which step, and what its
    workers did.
    """
    launch = Launch(
        job_id="a",
        attempt=1,
        workers=2,
        storage=str(folder),
        spec=JobSpec.model_validate(job(folder)),
    )
    records = [
        Record(
            attempt=1,
            generation=generation,
            seq=0,
            time=time,
            payload=Started(
                world_size=2,
                epoch=0,
                step=step,
                resumed_from=None,
                steps_per_epoch=9,
                layers=(),
                parameters=1,
            ),
        )
        for generation, (time, step) in enumerate(started)
    ]
    for pid in {line.pid for line in lines}:
        own = [json.dumps(asdict(line)) for line in lines if line.pid == pid]
        (folder / f"{pid}.jsonl").write_text("\n".join(own))
    return Watched(Life(RayBackend(address=""), launch, records=records), folder)


def line(pid: int, *, step: int, rank: int, built: float, time: float) -> Step:
    return Step(
        time=time, built=built, pid=pid, rank=rank, world_size=2, step=step, samples=(step, rank)
    )


def test_a_worker_that_is_ahead_of_the_word_that_its_group_started_belongs_to_it(
    tmp_path: Path,
) -> None:
    first = [
        line(7, step=0, rank=1, built=1.0, time=1.9),
        line(6, step=0, rank=0, built=1.0, time=2.1),
    ]
    second = [
        line(6, step=1, rank=1, built=5.0, time=5.9),
        line(8, step=1, rank=0, built=5.0, time=6.1),
    ]
    assert watched(tmp_path, [(2.0, 0), (6.0, 1)], first + second).surviving() == first + second


def test_what_was_rolled_back_and_what_a_zombie_went_on_with_is_no_history(tmp_path: Path) -> None:
    kept = [
        line(6, step=0, rank=0, built=1.0, time=2.1),
        line(6, step=1, rank=0, built=4.0, time=5.1),
    ]
    rolled_back = line(6, step=1, rank=0, built=1.0, time=2.2)
    zombie = line(7, step=2, rank=0, built=1.0, time=9.0)
    assert watched(tmp_path, [(2.0, 0), (5.0, 1)], [*kept, rolled_back, zombie]).surviving() == kept
