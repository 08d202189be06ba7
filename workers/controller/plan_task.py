"""Plans on the cluster: one worker's step is measured where the workers would run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray

from workers.contract import PlanAnswer, PlanOrder
from workers.planning.planner_process import run_planner

MEASURE_LIMIT_S = 300.0
"""Longest time to load the task and its data, and to measure."""


class PlanTasks:
    """The tasks of this process that measure plans; they end with it."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def advance(self, order: PlanOrder, read_code: Callable[[], bytes | None]) -> PlanAnswer | None:
        """Start the order's task unless it runs; return its answer once it has ended."""
        if order.id not in self._tasks:
            task = ray.remote(num_cpus=order.spec.workers.cpus, max_retries=0)(_measure)
            self._tasks[order.id] = task.remote(_request_of(order), read_code())
        done, _ = ray.wait([self._tasks[order.id]], timeout=0)
        if not done:
            return None
        try:
            answer = ray.get(self._tasks.pop(order.id))
        except (ray.exceptions.RayTaskError, ray.exceptions.WorkerCrashedError) as error:
            last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            return PlanAnswer(error=f"the process that measured the step ended: {last}")
        return PlanAnswer(error=answer["error"]) if "error" in answer else PlanAnswer(found=answer)

    def end(self, plan_id: str) -> None:
        """Cancel a plan's task; does nothing without one."""
        task = self._tasks.pop(plan_id, None)
        if task is not None:
            ray.cancel(task, force=True)


def _measure(request: dict[str, Any], code: bytes | None) -> dict[str, Any]:
    return run_planner(request, code=code, environment=os.environ, timeout_s=MEASURE_LIMIT_S)


def _request_of(order: PlanOrder) -> dict[str, Any]:
    return {
        "spec": order.spec.model_dump(mode="json"),
        "workers": order.spec.workers.max,
        "latency_s": order.latency_s,
        "bytes_per_s": order.bytes_per_s,
        "measure_s": order.measure_s,
    }


__all__ = ["MEASURE_LIMIT_S", "PlanTasks"]
