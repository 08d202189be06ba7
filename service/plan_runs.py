"""Runs the plans that users request on the cluster, one at a time; part of the scheduler's turn."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from pydantic import ValidationError

from service.code_store import CodeStore
from service.errors import NotFound, Unavailable
from service.runtime.protocol import Runtime
from service.store.models import PlanRow
from service.store.plan_rows import PlanStore
from workers.contract import JobSpec, PlanOrder

PLAN_LIMIT_S = 600.0
"""Seconds until a plan fails that waits for free CPUs, loads its task or measures."""
_log = structlog.get_logger()


class PlanRuns:
    """Starts the oldest plan, and stores its answer."""

    def __init__(
        self, store: PlanStore, runtime: Runtime, code: CodeStore, *, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._code = code
        self._clock = clock

    def advance(self) -> None:
        """Move the oldest plan on, if there is one.

        A plan that an earlier scheduler started is started again, because its task ended with that
        process.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        row = self._store.oldest_open()
        if row is None:
            return
        if row.started_at is None:
            self._store.start(row.id)
            _log.info("plan started", plan_id=row.id)
        elif self._clock() - row.started_at > PLAN_LIMIT_S:
            self._runtime.end_plan(row.id)
            self._store.fail(row.id, _describe_limit(row))
            return
        try:
            self._advance_on_cluster(row)
        except (ValidationError, KeyError, NotFound, Unavailable) as error:
            self._store.fail(row.id, f"the plan cannot be measured: {error}")

    def _advance_on_cluster(self, row: PlanRow) -> None:
        order = _order_of(row)
        code = order.spec.code
        answer = self._runtime.advance_plan(
            order, lambda: None if code is None else self._code.read(code)
        )
        if answer is None:
            return
        if answer.error:
            self._store.fail(row.id, answer.error)
        else:
            self._store.succeed(row.id, answer.found)
        _log.info("plan ended", plan_id=row.id, error=answer.error)


def _order_of(row: PlanRow) -> PlanOrder:
    link = row.request["link"]
    return PlanOrder(
        id=row.id,
        spec=JobSpec.model_validate(row.request["spec"]),
        latency_s=link["latency_ms"] / 1e3,
        bytes_per_s=link["mbit_per_s"] * 1e6 / 8,
        measure_s=row.request["measure_s"],
    )


def _describe_limit(row: PlanRow) -> str:
    cpus = row.request["spec"]["workers"]["cpus"]
    return (
        f"the plan did not end within {PLAN_LIMIT_S:g} s; it needs {cpus:g} free CPUs on a node,"
        " and then loads the task's data: free some, or run 'accordion plan' on a machine with the"
        " workers' packages"
    )
