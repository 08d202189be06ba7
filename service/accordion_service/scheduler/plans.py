"""Runs the plans that users request on the cluster, one at a time; part of the scheduler's turn."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from pydantic import ValidationError

from accordion_service.errors import NotFound, RuntimeUnavailable, Unavailable
from accordion_service.job_inputs.code import CodeStore
from accordion_service.job_inputs.environment import JobEnv
from accordion_service.runtime.protocol import Runtime
from accordion_service.scheduler.turn_logs import log_failure
from accordion_service.store.tables.models import PlanRow
from accordion_service.store.writes.plans import PlanStore
from accordion_workers.records.contract import JobSpec, PlanTask, name_variable

PLAN_LIMIT_S = 600.0
"""Time limit of a plan in seconds, including the wait for free CPUs."""
_log = structlog.get_logger()


class PlanRuns:
    """Measures the oldest plan, and stores its result.

    A plan that an earlier scheduler started is started again, because its task ended with that
    process.
    """

    def __init__(
        self,
        store: PlanStore,
        runtime: Runtime,
        code: CodeStore,
        *,
        env: JobEnv,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._code = code
        self._env = env
        self._monotonic = monotonic
        self._running: tuple[str, float] | None = None
        """ID of the plan that this process measures, and when it was started."""

    def advance(self) -> None:
        """Advance the oldest unfinished plan, if any; never raises, so that jobs go on."""
        try:
            row = self._store.oldest_open()
            if self._running is not None and (row is None or row.id != self._running[0]):
                _log.info("plan cancelled", plan_id=self._running[0])
                self.stop()
            if row is not None:
                self._advance(row)
        except RuntimeUnavailable as error:
            _log.warning("cluster", error=str(error))
        except Exception as error:  # noqa: BLE001  # a failing plan must not block jobs
            log_failure("plan", error)

    def stop(self) -> None:
        """Stop measuring: the plan is cancelled, or another scheduler works now."""
        if self._running is not None:
            plan_id, _ = self._running
            self._running = None
            self._end(plan_id)

    def _advance(self, row: PlanRow) -> None:
        if self._running is None or self._running[0] != row.id:
            self._running = (row.id, self._monotonic())
            self._store.start(row.id)
            _log.info("plan started", plan_id=row.id)
        elif self._monotonic() - self._running[1] > PLAN_LIMIT_S:
            self._fail(row, _describe_limit(row))
            self._end(row.id)
            return
        is_measuring = self._runtime.is_measuring(row.id)
        try:
            task = _task_of(row, None if is_measuring else self._env)
            code = self._code.read(task.spec.code) if task.spec.code and not is_measuring else None
        except (ValidationError, KeyError, NotFound, Unavailable, OSError) as error:
            self._fail(row, f"the plan cannot be measured: {error}")
            return
        found = self._runtime.advance_plan(task, code)
        if found is not None and found.error:
            self._fail(row, found.error)
        elif found is not None:
            self._running = None
            if self._store.succeed(row.id, found.result):
                _log.info("plan succeeded", plan_id=row.id)

    def _fail(self, row: PlanRow, message: str) -> None:
        self._running = None
        if self._store.fail(row.id, message):
            _log.info("plan failed", plan_id=row.id, error=message)

    def _end(self, plan_id: str) -> None:
        try:
            self._runtime.end_plan(plan_id)
        except RuntimeUnavailable as error:
            _log.warning("cluster", error=str(error))


def _task_of(row: PlanRow, env: JobEnv | None) -> PlanTask:
    """Return the task of a plan, without variables if `env` is None."""
    link, spec = row.request["link"], JobSpec.model_validate(row.request["spec"])
    paths = {name_variable(name): path for name, path in spec.data.items()}
    return PlanTask(
        id=row.id,
        spec=spec,
        latency_s=link["latency_ms"] / 1e3,
        bytes_per_s=link["mbit_per_s"] * 1e6 / 8,
        measure_s=row.request["measure_s"],
        env={} if env is None else env.resolve(spec, row.owner) | paths,
    )


def _describe_limit(row: PlanRow) -> str:
    cpus = row.request["spec"]["workers"]["cpus"]
    return (
        f"the plan did not end within {PLAN_LIMIT_S:g} s; it needs {cpus:g} free CPUs on a node,"
        " and then loads the task's data: free some, or run 'accordion plan' on a machine with the"
        " workers' packages"
    )
