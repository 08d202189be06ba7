"""Requests the capacity that jobs need from the cluster's autoscaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from accordion_service.domain.capacity.autoscaling import NO_RECORD, AutoscalerRecord
from accordion_service.domain.capacity.requests import NOTHING, CapacityRequest, plan_capacity
from accordion_service.domain.capacity.resources import Resources
from accordion_service.domain.capacity.trials import NO_TRIALS, judge_request, renew_trials
from accordion_service.job_inputs.queue import QueueReader
from accordion_service.runtime.protocol import AutoscalerReport, Runtime
from accordion_service.scheduler.allocator import ClusterState
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.queue import QueueReads
from accordion_service.store.writes.autoscaling import AutoscalerRows
from accordion_service.store.writes.scheduler_counts import SchedulerCounts

JUDGE_S = 20.0
"""Maximum time for which a request is kept until the autoscaler has judged it: on a busy cluster
the next one differs each second, and none would be judged.
"""
CLEAR_TIMEOUT_S = 5.0
"""Maximum time for which a scheduler that ends waits until its request is cleared."""
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
        self._database, self._queue = database, QueueReads(database)
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
        self._planned_at: float | None = None
        """Time of the plan that changed the request; None while it is not made."""
        self._is_judged = False
        """Whether the autoscaler has judged the present request."""
        self._num_judged = 0
        """Exchanges with the autoscaler whose judgement is in the trials."""
        self._foreign: Sequence[Resources] = ()
        """What other programs use, as it is in the request."""
        self._foreign_at: float | None = None

    def list_awaiting(self, token: int) -> frozenset[str]:
        """List the jobs for which capacity is reserved, also by an earlier scheduler."""
        self._read_record(token)
        is_off = self._settings.autoscaler == "off"
        return frozenset() if is_off else self._record.list_awaiting(self._clock())

    def update(self, cluster: ClusterState, token: int) -> None:
        """Plan the request for the present jobs, and have it made if it changed."""
        self._read_record(token)
        if self._settings.autoscaler == "off":
            self._withdraw(token)
            return
        always = self._settings.autoscaler == "on"
        self._judge()
        if not (always or self._report.exists is not False):
            self._request = NOTHING
        elif not self._waits_for_judgement():
            self._take_plan(cluster)
        self._exchange(token, always=always)
        if always or self._report.exists:
            self._store(self._build_record(), token)
        elif self._report.exists is False:
            self._store(NO_RECORD, token)

    def release(self) -> None:
        """Clear the standing request, unless another scheduler has begun."""
        token, record = self._token, self._record
        may_stand = self._report.exists is not None and bool(self._request.bundles)
        if token is None or not (record.is_standing or may_stand):
            return
        if not self._rows.write(token, record):
            return
        if self._runtime.clear_capacity_request(sender=token, timeout_s=CLEAR_TIMEOUT_S):
            self._store(replace(record, num_waiting=0, num_held=0), token)

    def _read_record(self, token: int) -> None:
        if token != self._token:
            self._token, self._record = token, self._rows.read()

    def _withdraw(self, token: int) -> None:
        """Clear the request that was made before the setting was changed. Without one, nothing is
        cleared: the standing request may be that of another program.
        """
        if self._record == NO_RECORD:
            return
        self._request = NOTHING
        if self._record.is_standing:
            self._exchange(token, always=True)
        if not self._record.is_standing or self._report.request == ():
            self._store(NO_RECORD, token)

    def _judge(self) -> None:
        """Let the trials take in a new judgement of the present request."""
        report, now = self._report, self._clock()
        groups, used = self._request.groups, self._request.held
        self._trials = renew_trials(self._trials, groups, used=used, now=now)
        if report.num_exchanges == self._num_judged or report.request != self._request.bundles:
            return
        self._num_judged = report.num_exchanges
        if report.is_feasible is not None:
            self._is_judged = True
            self._trials = judge_request(
                self._trials, groups, used=used, is_feasible=report.is_feasible, now=now
            )

    def _waits_for_judgement(self) -> bool:
        """Return whether the request is kept until the autoscaler has judged it."""
        may_come = self._report.reports_feasibility and bool(self._request.bundles)
        if self._planned_at is None or self._is_judged or not may_come:
            return False
        return 0.0 <= self._clock() - self._planned_at < JUDGE_S

    def _take_plan(self, cluster: ClusterState) -> None:
        request = self._plan(cluster)
        if request.bundles != self._request.bundles or self._planned_at is None:
            self._planned_at, self._is_judged = self._clock(), False
        self._request = request

    def _plan(self, cluster: ClusterState) -> CapacityRequest:
        reader = QueueReader(self._database, self._settings, avoided=cluster.list_avoided())
        rows, now = self._queue.allocated(), self._clock()
        if self._foreign_at is None or not 0.0 <= now - self._foreign_at < USE_INTERVAL_S:
            self._foreign = cluster.foreign_use.estimate(cluster.held_resources(rows))
            self._foreign_at = now
        return plan_capacity(
            reader.list_pending(reader.read_contenders()),
            reader.list_allocated(rows, cluster.placed_nodes),
            cluster.usable_nodes(),
            foreign=self._foreign,
            quotas=reader.rules.quotas,
            node_types=self._report.node_types,
            max_workers=self._settings.autoscaler_max_workers,
            trials=self._trials,
            ties_use=self._report.reports_feasibility,
        )

    def _exchange(self, token: int, *, always: bool) -> None:
        """Have the request made. The autoscaler is only polled until its version is known, and
        while nothing is needed and no request of ours is standing: another program's may be.
        """
        before, bundles = self._report, self._request.bundles
        is_ours = self._record.is_standing or bool(before.request)
        is_poll = before.exists is None or not (bundles or is_ours)
        self._planned_at = None if is_poll else self._planned_at
        self._report = self._runtime.request_capacity(
            None if is_poll else bundles, sender=token, always=always
        )
        self._counts.count_autoscaler_requests(
            sent=max(0, self._report.num_requests - before.num_requests),
            failed=max(0, self._report.num_failed - before.num_failed),
        )

    def _build_record(self) -> AutoscalerRecord:
        """Build the record of the request: as it was last, until a changed one was made."""
        report, request, before, now = self._report, self._request, self._record, self._clock()
        queued = request.waiting
        requested_at = {k: at for k, at in before.requested_at.items() if k in queued}
        awaited_since = {k: at for k, at in before.awaited_since.items() if k in queued}
        unmade = dict.fromkeys(request.groups, report.problem) if report.problem else {}
        record = replace(
            before,
            requested_at=requested_at,
            awaited_since=awaited_since,
            obstacles={**request.obstacles, **unmade},
        )
        if report.request != request.bundles:
            return record
        added = request.groups.keys() & (
            self._trials.accepted if report.reports_feasibility else queued
        )
        return replace(
            record,
            requested_at={**dict.fromkeys(request.groups, now), **requested_at},
            awaited_since={**dict.fromkeys(sorted(added), now), **awaited_since},
            num_waiting=sum(len(group) for group in request.groups.values()),
            num_held=len(request.held),
        )

    def _store(self, record: AutoscalerRecord, token: int) -> None:
        if record != self._record and self._rows.write(token, record):
            self._record = record
