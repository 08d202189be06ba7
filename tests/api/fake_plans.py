"""Plans of the scripted cluster: they are answered a turn after they were started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accordion_workers.records.contract import PlanResult, PlanTask

FOUND: dict[str, Any] = {
    "compute_s": 0.2,
    "predictions": [
        {
            "method": "powersgd",
            "level": "low",
            "options": {"rank": 4},
            "step_s": 0.25,
            "samples_per_s": 256.0,
            "exchange_s": 0.05,
            "sent_bytes": 100_000,
            "exchange_plan": [1, 2],
            "collectives": 4,
            "is_own_method": True,
            "local_steps": 1,
        }
    ],
    "local_steps": {"low": 4, "high": 16},
    "runs": [
        {
            "assumed": "",
            "epochs": [
                {
                    "epoch": 0,
                    "epochs": 2,
                    "lr": 0.1,
                    "last_lr": 0.1,
                    "global_batch": 64,
                    "steps": 10,
                    "local_steps": [1, 4],
                    "layers_by_level": {"low": 2},
                    "exchanges": 6,
                    "sent_bytes": 600_000,
                }
            ],
            "sent_bytes": 1_200_000,
            "control_bytes": 1_000,
            "uncompressed_bytes": 6_000_000,
        }
    ],
}


class FakePlans:
    """The part of `FakeRuntime` that measures plans."""

    _answer: Callable[[], None]

    def __init__(self) -> None:
        self.plan_result: PlanResult | None = PlanResult(result=FOUND)
        """Result of every plan; None while they are measured."""
        self.plan_failure: Exception | None = None
        """Raised by every attempt to measure."""
        self.measured: list[PlanTask] = []
        """Plans that were started, in order."""
        self.plan_codes: list[bytes | None] = []
        self.ended_plans: list[str] = []
        self._running: set[str] = set()

    def is_measuring(self, plan_id: str) -> bool:
        return plan_id in self._running

    def advance_plan(self, plan: PlanTask, code: bytes | None) -> PlanResult | None:
        self._answer()
        if self.plan_failure is not None:
            raise self.plan_failure
        if plan.id not in self._running:
            self.plan_codes.append(code)
            self.measured.append(plan)
            self._running.add(plan.id)
            return None
        if self.plan_result is not None:
            self._running.discard(plan.id)
        return self.plan_result

    def end_plan(self, plan_id: str) -> None:
        self._answer()
        self.ended_plans.append(plan_id)
        self._running.discard(plan_id)

    def forget_plans(self) -> None:
        """The process that measured is gone, and with it what it measured."""
        self._running.clear()
