"""Workers that come and go, as short texts for people; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.domain.jobs import Kind

if TYPE_CHECKING:
    from service.api.schemas import JobView, RayRunView
    from service.domain.tally import Tally

_CAUSES = {
    "ordered": "ordered",
    "joined": "workers joined",
    "leaving": "a node leaves",
    "infrastructure": "workers lost",
    "job": "the job failed",
}
"""Of changes of worker group, for people."""


def workers(job: JobView) -> str:
    """Describe how many there are, how many are wanted, and how many people allow."""
    if job.kind == Kind.GUEST:
        return f"{job.world_size} train now; a guest run, started and stopped by its own script"
    allowed = f"{job.min_workers} to {job.max_workers} allowed"
    return f"{job.world_size} train now, {job.workers} wanted, {allowed}"


def ray_run(run: RayRunView) -> str:
    """Describe what runs the newest worker group in Ray."""
    engine = {"ray-train": "Ray Train", "actors": "plain actors", None: "engine unknown"}[
        run.engine
    ]
    train_run = f", run {run.train_run}" if run.train_run else ""
    return f"{engine}{train_run}{f', Ray job {run.ray_job_id}' if run.ray_job_id else ''}"


def tally(cost: Tally) -> str:
    """What changes of worker group cost so far."""
    parts = [
        f"{_counted(sum(by.values()), *nouns)} "
        f"({', '.join(f'{_CAUSES.get(name, name)} {count}' for name, count in by.items())})"
        for by, nouns in (
            (cost.resizes, ("resize", "resizes")),
            (cost.recoveries, ("recovery", "recoveries")),
        )
        if by
    ]
    return ", ".join([*parts, _cost(cost.steps_rolled_back, cost.seconds_lost)])


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def change(data: Mapping[str, Any]) -> str:
    """A change of a job's workers, as its event tells it."""
    match data["what"]:
        case "started" if data["cause"] == "start":
            resumed = f", resumed from {data['resumed_from']}" if data["resumed_from"] else ""
            count = (
                f"{data['world_size']} worker{' trains' if data['world_size'] == 1 else 's train'}"
            )
            return f"{count} from epoch {data['epoch']}{resumed}"
        case "started":
            cause = _CAUSES.get(data["why"], data["why"])
            cost = _cost(data["steps_rolled_back"], data["seconds_lost"])
            return f"{data['previous_world_size']} → {data['world_size']} workers: {cause}, {cost}"
        case "resizing":
            return f"at the next step {data['message']}"
        case "granted":
            return f"{data['old']} → {data['new']} workers wanted: {data['message']}"
        case "allowed":
            return f"{data['min']} to {data['max']} workers allowed"
    return f"workers ended: {data['message']}"


def _cost(steps: int, seconds: float) -> str:
    return f"{steps} step{'' if steps == 1 else 's'} rolled back, {seconds:.1f} s lost"
