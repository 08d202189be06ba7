"""Plans on the cluster: one worker's step is measured where the workers would run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray

from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.planning.planner_process import run_planner
from accordion_workers.records.contract import PlanResult, PlanTask

MEASURE_LIMIT_S = 300.0
"""Longest time, in seconds, to load the task and its data, and to measure."""


class PlanTasks:
    """The Ray task of this process that measures a plan; it ends with the process."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def advance(self, plan: PlanTask, code: bytes | None) -> PlanResult | None:
        """Start the plan's task unless it runs; return its result once it has ended."""
        if plan.id not in self._tasks:
            self._tasks[plan.id] = _start(plan, code)
        task = self._tasks[plan.id]
        done, _ = ray.wait([task], timeout=0)
        if not done:
            return None
        del self._tasks[plan.id]
        try:
            answer = ray.get(task)
        except ray.exceptions.RayError as error:
            last = (str(error).strip().splitlines() or [""])[-1]
            return PlanResult(
                error=f"the process that measured the step ended ({type(error).__name__}): {last}"
            )
        return PlanResult(error=answer["error"]) if "error" in answer else PlanResult(result=answer)

    def has(self, plan_id: str) -> bool:
        """Return whether this plan is being measured."""
        return plan_id in self._tasks

    def end(self, plan_id: str) -> None:
        """Cancel a plan's task; does nothing without one."""
        task = self._tasks.pop(plan_id, None)
        if task is not None:
            ray.cancel(task, force=True)


def _start(plan: PlanTask, code: bytes | None) -> Any:
    workers = plan.spec.workers
    reserved = {"num_cpus": workers.cpus, **workers.ray_options()}
    task = ray.remote(max_retries=0, **reserved)(_measure)
    secrets = plan.list_secret_values()
    return task.remote(_request_of(plan), code, env=plan.env, secrets=secrets)


def _measure(
    request: dict[str, Any], code: bytes | None, *, env: dict[str, str], secrets: list[str]
) -> dict[str, Any]:
    environment = {**os.environ, **env}
    answer = run_planner(request, code=code, environment=environment, timeout_s=MEASURE_LIMIT_S)
    return mask_error(answer, secrets)


def mask_error(answer: dict[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Return a planner's answer without the values of secrets, which its error may contain."""
    if "error" not in answer:
        return answer
    return {**answer, "error": SecretMask(secrets).apply(answer["error"])}


def _request_of(plan: PlanTask) -> dict[str, Any]:
    return {
        "spec": plan.spec.model_dump(mode="json"),
        "workers": plan.spec.workers.max,
        "latency_s": plan.latency_s,
        "bytes_per_s": plan.bytes_per_s,
        "measure_s": plan.measure_s,
    }


__all__ = ["MEASURE_LIMIT_S", "PlanTasks", "mask_error"]
