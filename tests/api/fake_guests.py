"""Guest runs of the scripted cluster: scripts that registered themselves, without a supervisor."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from accordion_workers.records.contract import GUEST_ATTEMPT, Drained, Guest, JobSpec, Launch
from accordion_workers.tasks import GUEST
from tests.api.fake_job import FakeJob, controller_of


class FakeGuests:
    """The part of `FakeRuntime` that knows guest runs, each of them one of its jobs, and Ray's
    dashboard.
    """

    _answer: Callable[[], None]

    def __init__(self, clock: Callable[[], float]) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.stuck: set[str] = set()
        """Jobs that do not react to orders, and do not train."""
        self._clock = clock
        self.dashboard: str | None = None
        self.enlisted: dict[str, Guest] = {}
        self.forgotten: list[str] = []
        self.silent: set[str] = set()
        """Guest runs whose script is gone: they do not enlist."""
        self._enlisted_at: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}

    def enlist(self, name: str = "digits", **changes: Any) -> str:
        """A script registers itself; return its job id."""
        spec = {"task": {"name": GUEST}, "workers": {"min": 2, "max": 2}, **changes.pop("spec", {})}
        facts = {"train_run": f"{name}-run", "ray_job_id": "01000000", "generation": 1, **changes}
        guest = Guest(
            job_id=str(uuid.uuid4()), name=name, spec=JobSpec.model_validate(spec), **facts
        )
        launch = Launch(
            job_id=guest.job_id, attempt=GUEST_ATTEMPT, workers=2, storage="", spec=guest.spec
        )
        job = FakeJob(launch=launch, controller=controller_of(launch), attempt=GUEST_ATTEMPT)
        self.jobs[guest.job_id], self.enlisted[guest.job_id] = job, guest
        return guest.job_id

    def dashboard_url(self) -> str | None:
        return self.dashboard

    def guests(self) -> list[Guest]:
        self._answer()
        return list(self.enlisted.values())

    def forget_guest(self, job_id: str) -> None:
        self._answer()
        self.forgotten.append(job_id)
        self.enlisted.pop(job_id, None)
        self.jobs[job_id].alive = False

    def add_sign_of_life(self, job_id: str, drained: Drained) -> Drained:
        """Tell when the guest run last enlisted; it does so in every turn unless it is silent."""
        if job_id not in self.enlisted:
            return drained
        if job_id not in self.silent:
            self._enlisted_at[job_id] = self._clock()
        silent_s = self._clock() - self._enlisted_at.setdefault(job_id, self._clock())
        return drained.model_copy(update={"silent_s": silent_s})

    def report_time(self, job_id: str) -> float:
        """Time of the newest progress; a stuck guest run makes none, and the old one is drained
        again.
        """
        if job_id not in self.stuck or job_id not in self.enlisted:
            self._reported_at[job_id] = self._clock()
        return self._reported_at.setdefault(job_id, self._clock())
