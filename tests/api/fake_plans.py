"""Plans of the scripted cluster: they are answered a turn after they were started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.contract import PlanAnswer, PlanOrder

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
        }
    ],
}


class FakePlans:
    """The part of `FakeRuntime` that measures plans."""

    _answer: Callable[[], None]

    def __init__(self) -> None:
        self.plan_answer: PlanAnswer | None = PlanAnswer(found=FOUND)
        """Answer of every plan; None while they are measured."""
        self.measured: list[PlanOrder] = []
        """Plans that were started, in order."""
        self.plan_codes: list[bytes | None] = []
        self.ended_plans: list[str] = []
        self._running: set[str] = set()

    def advance_plan(
        self, order: PlanOrder, read_code: Callable[[], bytes | None]
    ) -> PlanAnswer | None:
        self._answer()
        if order.id not in self._running:
            self.plan_codes.append(read_code())
            self.measured.append(order)
            self._running.add(order.id)
            return None
        if self.plan_answer is not None:
            self._running.discard(order.id)
        return self.plan_answer

    def end_plan(self, plan_id: str) -> None:
        self._answer()
        self.ended_plans.append(plan_id)
        self._running.discard(plan_id)

    def forget_plans(self) -> None:
        """The process that measured is gone, and with it what it measured."""
        self._running.clear()
