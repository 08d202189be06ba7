"""People whose jobs run while processes are killed: each job has an owner with a plan for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from service.api.override_schemas import OverrideRequest
from service.api.schemas import EventView, JobView
from service.client import Client, Refused, ServiceFailed, Unreachable
from service.client.stream import Waiter

OWNERS = ("ada", "bob", "cyd")
PLANS = ("finish", "cancel", "pause", "pause and resume", "override", "resize")
Plan = Literal["finish", "cancel", "pause", "pause and resume", "override", "resize"]
Result = TypeVar("Result")
_SHARES = (9, 4, 3, 5, 5, 4)
"""Number of jobs of each plan, of 30."""
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
    """Why the owner's plan was not carried out, if it was not: the job had ended."""
    seen: list[EventView] = field(default_factory=list)
    """Events, as one client received them."""
    watcher_error: str = ""
    """Why that client stopped before the end, if it did."""

    @property
    def expected(self) -> str:
        """Status in which the job must be in the end."""
        if self.refused:
            return "SUCCEEDED"
        return {"cancel": "CANCELLED", "pause": "PAUSED"}.get(self.plan, "SUCCEEDED")

    def spec(self) -> dict[str, Any]:
        """Return the spec to submit."""
        return {
            "name": f"{self.owner}-{self.number}",
            "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.05}},
            "training": {"epochs": self.epochs},
            "workers": {"min": 1, "max": 2},
            "priority": self.priority,
            "labels": {"plan": self.plan.replace(" ", "-")},
        }


def draw_jobs(draw: random.Random, number: int) -> list[OwnedJob]:
    """Draw jobs with all plans, in a random order."""
    plans = draw.sample(PLANS, counts=[-(-share * number // 30) for share in _SHARES], k=number)
    return [
        OwnedJob(
            number=n,
            owner=OWNERS[n % len(OWNERS)],
            plan=plan,  # type: ignore[arg-type]
            epochs=draw.randint(6, 12),
            priority=draw.choice([20, 50, 80]),
            act_after=draw.randint(1, 4),
        )
        for n, plan in enumerate(plans)
    ]


class Owner:
    """Carries out the plans for the jobs of one user."""

    def __init__(self, url: str, token: str, pool: ThreadPoolExecutor) -> None:
        self.client = Client(url, token, waiter=Waiter(patience_s=300.0))
        self._pool = pool
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """End all threads that act on jobs."""
        self._given_up.set()

    def start(self, job: OwnedJob) -> tuple[Future[None], Future[None]]:
        """Submit a job; return the threads that act on it and watch its events."""
        job.id = self._insist(
            lambda: self.client.submit(job.spec(), idempotency_key=f"chaos-{job.number}")
        ).id
        return self._pool.submit(self._act, job), self._pool.submit(self._watch, job)

    def _watch(self, job: OwnedJob) -> None:
        try:
            for event in self.client.events(job.id):
                if isinstance(event, EventView):
                    job.seen.append(event)
        except Exception as error:  # noqa: BLE001  # whatever it is, the run reports it
            job.watcher_error = repr(error)

    def _act(self, job: OwnedJob) -> None:
        found = self._wait(
            job, lambda now: now.ended_at is not None or _epochs(now) >= job.act_after
        )
        if found.ended_at is not None:
            job.refused = "it had ended"
        elif job.plan != "finish":
            try:
                self._carry_out(job)
            except Refused as error:
                if error.status != 409:
                    raise
                job.refused = str(error)
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
