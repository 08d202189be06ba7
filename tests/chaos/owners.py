"""People whose jobs run while processes are killed: each job has an owner with a plan for it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from accordion_client import Client, Refused, ServiceFailed, Unreachable
from accordion_client.machine.programs import LEAST_CPUS
from accordion_client.sdk.stream import Waiter
from accordion_service.schemas.jobs import EventView, JobView
from accordion_service.schemas.overrides import OverrideRequest

OWNERS = ("ada", "bob", "cyd")
WORKERS_PER_OWNER = 3
"""Quota of each owner."""
_WORKER_CPUS = max(LEAST_CPUS, os.cpu_count() or 1) / 4
"""CPUs of a worker: four workers fill the cluster, however many CPUs the machine has."""
Plan = Literal["finish", "cancel", "pause", "pause and resume", "override", "resize"]
PLANS: tuple[Plan, ...] = get_args(Plan)
Result = TypeVar("Result")
_WEIGHTS = (5, 4, 3, 5, 5, 4)
"""How often each plan is drawn."""
_EPOCHS: Mapping[Plan, tuple[int, int]] = {
    "finish": (6, 12),
    "cancel": (60, 60),
    "pause": (60, 60),
    "pause and resume": (20, 24),
    "override": (20, 24),
    "resize": (20, 24),
}
"""Least and most epochs of a job, each of more than a second. An owner acts after a few, so an
order has time to take effect while a scheduler or the actor is down, and a lost one is found.
"""
NUM_OPENING = 4
"""Jobs of the first owner that start before all others. They need more than the quota, and give
way to any other job.
"""
_OPENING_PRIORITY, _OPENING_EPOCHS = 20, 16
_PRIORITIES = (40, 60, 80)
LEAST_JOBS = NUM_OPENING + len(PLANS) - 1
"""Number of jobs from which a run has all plans; the opening jobs have the first."""
_POLL_S = 1.0
_RETRY_S = 0.5


@dataclass(kw_only=True)
class OwnedJob:
    """A job and what its owner does with it."""

    number: int
    owner: str
    plan: Plan
    epochs: int
    priority: int
    act_after: int
    """Finished epochs after which the owner acts."""
    id: str = ""
    refused: str = ""
    """What the service said if it refused an order (409): the job had ended."""
    refused_at: float = 0.0
    """When it said so, in seconds since 1970."""
    seen: list[EventView] = field(default_factory=list)
    """Events, as one client received them."""
    watcher_error: str = ""
    """Why that client stopped before the end, if it did."""

    @property
    def expected(self) -> str:
        """Status in which the owner wants the job in the end."""
        return {"cancel": "CANCELLED", "pause": "PAUSED"}.get(self.plan, "SUCCEEDED")

    @property
    def min_workers(self) -> int:
        """Fewest workers of the job, before it is resized to one."""
        return 2 if self.plan == "resize" else 1

    def spec(self) -> dict[str, Any]:
        """Return the spec to submit."""
        return {
            "name": f"{self.owner}-{self.number}",
            "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.05}},
            "training": {"epochs": self.epochs},
            # An override to low is visible in each epoch.
            "policy": {"name": "fixed", "options": {"level": "high"}},
            "workers": {"min": self.min_workers, "max": 2, "cpus": _WORKER_CPUS},
            "priority": self.priority,
            "labels": {"plan": self.plan.replace(" ", "-")},
        }


def draw_jobs(draw: random.Random, number: int) -> list[OwnedJob]:
    """Draw jobs: the opening ones, and then at least one of each other plan, in a random order."""
    opening = [
        OwnedJob(
            number=n,
            owner=OWNERS[0],
            plan=PLANS[0],
            epochs=_OPENING_EPOCHS,
            priority=_OPENING_PRIORITY,
            act_after=1,
        )
        for n in range(NUM_OPENING)
    ]
    plans = [*PLANS[1:], *draw.choices(PLANS, _WEIGHTS, k=number - LEAST_JOBS)]
    draw.shuffle(plans)
    others = [
        OwnedJob(
            number=n,
            owner=OWNERS[n % len(OWNERS)],
            plan=plan,
            epochs=draw.randint(*_EPOCHS[plan]),
            priority=draw.choice(_PRIORITIES),
            act_after=draw.randint(1, 4),
        )
        for n, plan in enumerate(plans, NUM_OPENING)
    ]
    return [*opening, *others]


class Owner:
    """Carries out the plans for the jobs of one user."""

    def __init__(self, url: str, token: str, pool: ThreadPoolExecutor) -> None:
        self.client = Client(url, token, waiter=Waiter(patience_s=300.0))
        self._pool = pool
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """End all threads that act on jobs."""
        self._given_up.set()

    def start(self, job: OwnedJob) -> Future[None]:
        """Submit a job; return the thread that acts on it. Another one watches its events."""
        job.id = self._insist(
            lambda: self.client.submit(job.spec(), idempotency_key=f"chaos-{job.number}")
        ).id
        self._pool.submit(self._watch, job)
        return self._pool.submit(self._act_on_job, job)

    def _watch(self, job: OwnedJob) -> None:
        try:
            for event in self.client.events(job.id):
                if isinstance(event, EventView):
                    job.seen.append(event)
        except Exception as error:  # noqa: BLE001  # whatever it is, the run reports it
            job.watcher_error = repr(error)

    def _act_on_job(self, job: OwnedJob) -> None:
        self._wait(job, lambda now: now.ended_at is not None or _epochs(now) >= job.act_after)
        try:
            self._carry_out(job)
        except Refused as error:
            if error.status != 409:
                raise
            job.refused, job.refused_at = str(error), time.time()
        self._wait(job, lambda now: now.status == job.expected or now.ended_at is not None)

    def _carry_out(self, job: OwnedJob) -> None:
        match job.plan:
            case "cancel":
                self._insist(lambda: self.client.cancel(job.id))
            case "pause":
                self._insist(lambda: self.client.pause(job.id))
            case "pause and resume":
                self._insist(lambda: self.client.pause(job.id))
                self._wait(job, lambda now: now.status == "PAUSED" or now.ended_at is not None)
                self._insist(lambda: self.client.resume(job.id))
            case "override":
                request = OverrideRequest(level="low", reason="chaos")
                key = f"chaos-{job.number}"
                self._insist(lambda: self.client.override(job.id, request, idempotency_key=key))
            case "resize":
                self._insist(lambda: self.client.resize(job.id, 1, 1))

    def _wait(self, job: OwnedJob, condition: Callable[[JobView], bool]) -> JobView:
        while not condition(found := self._insist(lambda: self.client.job(job.id))):
            self._given_up.wait(_POLL_S)
        return found

    def _insist(self, request: Callable[[], Result]) -> Result:
        """Repeat a request until the service answers; each of them may be repeated.

        Raises:
            TimeoutError: the run was given up.
        """
        while not self._given_up.is_set():
            try:
                return request()
            except (Unreachable, ServiceFailed):
                self._given_up.wait(_RETRY_S)
        raise TimeoutError("the run was given up")


def _epochs(job: JobView) -> int:
    return job.progress.epoch if job.progress is not None else 0
