"""Asks the cluster's autoscaler for the capacity that jobs need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from service.allocator import ClusterState
from service.domain.autoscaler_record import NO_RECORD, AutoscalerRecord
from service.domain.capacity_request import NOTHING, CapacityRequest, plan_capacity
from service.domain.capacity_trials import NO_TRIALS, judge_request, renew_trials
from service.domain.resources import Resources
from service.queue_inputs import QueueReader
from service.runtime.protocol import AutoscalerReport, Runtime
from service.settings import Settings
from service.store.autoscaler_rows import AutoscalerRows
from service.store.database import Database
from service.store.repository import Repository
from service.store.scheduler_counts import SchedulerCounts

USE_INTERVAL_S = 30.0
"""Seconds for which the request keeps what other programs use: it may change with each of their
tasks, and the autoscaler judges a request only while it stays the same.
"""


class Autoscaling:
    """Keeps the standing request as the jobs need it; `clock` returns seconds since 1970."""

    def __init__(
        self,
        database: Database,
        runtime: Runtime,
        settings: Settings,
        *,
        counts: SchedulerCounts,
        clock: Callable[[], float],
    ) -> None:
        self._repository = Repository(database)
        self._rows = AutoscalerRows(database)
        self._runtime = runtime
        self._settings = settings
        self._counts = counts
        self._clock = clock
        self._token: int | None = None
        """Token with which the record was read or written last."""
        self._record = NO_RECORD
        self._report = AutoscalerReport()
        self._request = NOTHING
        self._trials = NO_TRIALS
        self._num_judged = 0
        """Exchanges with the autoscaler whose judgement is in the trials."""
        self._foreign: Sequence[Resources] = ()
        """What other programs use, as it is in the request."""
        self._foreign_at: float | None = None

    def update(self, cluster: ClusterState, token: int) -> None:
        """Plan the request for the present jobs, and have it sent if it changed."""
        if token != self._token:
            self._token, self._record = token, self._rows.read()
        if self._settings.autoscaler == "off":
            self._withdraw(token)
            return
        always = self._settings.autoscaler == "on"
        self._judge()
        may_ask = always or self._report.exists is not False
        self._request = self._plan(cluster) if may_ask else NOTHING
        self._exchange(token, always=always)
        if always or self._report.exists:
            self._store(self._build_record(), token)
        elif self._report.exists is False:
            self._store(NO_RECORD, token)
        cluster.awaiting_nodes = self._record.list_awaiting(self._clock())

    def _withdraw(self, token: int) -> None:
        """Clear the request that was sent before the setting was changed. Without one, nothing is
        sent: the standing request may be that of another program.
        """
        if self._record == NO_RECORD:
            return
        self._request = NOTHING
        self._exchange(token, always=True)
        if self._report.sent == ():
            self._store(NO_RECORD, token)

    def _judge(self) -> None:
        """Let the trials take in a new judgement of the present request."""
        report, now = self._report, self._clock()
        self._trials = renew_trials(self._trials, now)
        if report.num_exchanges == self._num_judged or report.sent != self._request.bundles:
            return
        self._num_judged = report.num_exchanges
        if report.is_possible is not None:
            self._trials = judge_request(
                self._trials,
                self._request.asked,
                is_complete=self._request.is_complete,
                is_possible=report.is_possible,
                now=now,
            )

    def _plan(self, cluster: ClusterState) -> CapacityRequest:
        reader = QueueReader(self._repository, self._settings)
        rows, now = self._repository.allocated(), self._clock()
        if self._foreign_at is None or not 0.0 <= now - self._foreign_at < USE_INTERVAL_S:
            self._foreign = cluster.foreign_use.estimate(cluster.held_resources(rows))
            self._foreign_at = now
        return plan_capacity(
            reader.list_pending(reader.read_queue()),
            reader.list_allocated(rows, cluster.placed_nodes),
            cluster.usable_nodes(),
            foreign=self._foreign,
            quotas=reader.rules.quotas,
            node_types=self._report.node_types,
            max_workers=self._settings.autoscaler_max_workers,
            trials=self._trials,
        )

    def _exchange(self, token: int, *, always: bool) -> None:
        before = self._report
        self._report = self._runtime.request_capacity(
            self._request.bundles, sender=token, always=always
        )
        self._counts.count_autoscaler_requests(
            sent=max(0, self._report.num_sent - before.num_sent),
            failed=max(0, self._report.num_failed - before.num_failed),
        )

    def _build_record(self) -> AutoscalerRecord:
        """Build the record of the request: as it was last, until a changed one was sent."""
        report, request, before, now = self._report, self._request, self._record, self._clock()
        if report.sent != request.bundles and not report.problem:
            return replace(before, obstacles=request.obstacles)
        asked_at = {job_id: before.asked_at.get(job_id, now) for job_id in request.asked}
        accepted = self._trials.accepted & asked_at.keys()
        unasked = dict.fromkeys(request.asked, report.problem) if report.problem else {}
        return AutoscalerRecord(
            asked_at={} if report.problem else asked_at,
            awaited_since={
                job_id: before.awaited_since.get(job_id, now) for job_id in sorted(accepted)
            },
            obstacles={**request.obstacles, **unasked},
            num_waiting=sum(len(group) for group in request.asked.values()),
            num_held=len(request.held),
        )

    def _store(self, record: AutoscalerRecord, token: int) -> None:
        if record != self._record and self._rows.write(token, record):
            self._record = record
