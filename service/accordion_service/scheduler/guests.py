"""Follows guest runs: Ray Train scripts that registered with the Accordion actor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

import structlog

from accordion_service.domain.jobs.actions import Follow
from accordion_service.domain.jobs.guests import (
    CloseGuest,
    MarkGuestLost,
    MarkGuestStalled,
    ObservedGuest,
    SilenceLimits,
    SilenceTimer,
    next_guest_action,
)
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.process.trusted_clock import AGREED_S
from accordion_service.scheduler.deadlines import Deadlines
from accordion_service.scheduler.order_delivery import OrderDelivery
from accordion_service.scheduler.report_drain import ReportDrain
from accordion_service.scheduler.turn_logs import log_failure
from accordion_service.settings.settings import Settings
from accordion_service.store.ingest.record_ingest import cursor_of, has_new_data
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_workers.records.contract import Drained, EndRecord, Guest

_log = structlog.get_logger()


class GuestRuns:
    """Inserts rows for guest runs, stores what they report, and detects silent and stalled runs.

    They are never started, placed, resized or queued: their processes belong to Ray Train, and
    the resources that these use count as use by other programs.
    """

    def __init__(
        self,
        jobs: JobReads,
        orders: OrderDelivery,
        *,
        reports: ReportDrain,
        settings: Settings,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._orders = orders
        self._runtime = orders.runtime
        self._writes = orders.writes
        self._reports = reports
        self._monotonic = monotonic
        self._limits = SilenceLimits(lost_s=settings.guest_lost_s, closed_s=settings.guest_closed_s)
        self._silence = SilenceTimer(settings.lease_s)
        """Seconds without a heartbeat: a run enlists every few seconds, whatever it does."""
        self._idleness = SilenceTimer(settings.lease_s)
        """Seconds without a report."""
        self._deadlines = Deadlines(
            clock=clock,
            monotonic=monotonic,
            longest_s=settings.guest_closed_s,
            agreed_s=AGREED_S,
        )
        self._closed_in_s = max(0.0, self._limits.closed_s - self._limits.lost_s)
        self._registered: dict[str, Guest] = {}
        """Guest runs at the last look, by job id."""
        self._ended_at: dict[str, float] = {}
        """When an ended run was first seen registered, by job id; monotonic clock."""

    def refresh_registered(self, token: int) -> None:
        """Insert rows for new guest runs, and let the cluster forget those that are over.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        guests = {guest.job_id: guest for guest in self._runtime.guests()}
        known = self._jobs.known(guests)
        unfinished = self._jobs.unfinished_ids()
        ended = known - unfinished
        for followed in (self._silence, self._idleness, self._deadlines):
            followed.keep_only(unfinished)
        self._registered = {id_: guest for id_, guest in self._registered.items() if id_ in guests}
        for job_id in guests.keys() - ended:
            self._register_run(guests[job_id], token)
        self._forget_ended(ended)

    def follow(self, job: JobRow, token: int) -> None:
        """Store what the run reports, detect its silence or end, and deliver new orders.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        drained = self._reports.take(job)
        has_news = has_new_data(job, drained) or self._is_found(job, drained)
        seen = self._observe_run(job, drained, has_news=has_news)
        payloads = (record.payload for record in drained.records)
        end = next((payload for payload in payloads if isinstance(payload, EndRecord)), None)
        if end is not None:
            self._finish_run(job, end, token)
            return
        if has_news:
            self._reports.store(job, token, drained)
        match next_guest_action(seen, self._limits):
            case Follow():
                if job.id in self._reports.answered:
                    self._orders.deliver(job, drained.orders_version, token)
            case MarkGuestLost(message):
                self._writes.mark_guest_lost(job, token, message=message, left_s=self._closed_in_s)
            case MarkGuestStalled():
                self._writes.mark_guest_stalled(job, token, idle_s=seen.idle_s)
            case CloseGuest(message):
                self._finish_run(
                    job, EndRecord(status="FAILED", reason="LOST", message=message), token
                )
            case action:
                assert_never(action)

    def _observe_run(self, job: JobRow, drained: Drained, *, has_news: bool) -> ObservedGuest:
        now, news = self._monotonic(), 0.0 if has_news else None
        responded = job.id in self._reports.answered
        life = drained.silent_s if news is None else news
        deadline = self._deadlines.get(job)
        return ObservedGuest(
            status=Status(job.status),
            reason=Reason(job.reason),
            silent_s=self._silence.update(job.id, responded=responded, at_most_s=life, now=now),
            idle_s=self._idleness.update(job.id, responded=responded, at_most_s=news, now=now),
            is_overdue=deadline is not None and now >= deadline,
        )

    def _is_found(self, job: JobRow, drained: Drained) -> bool:
        """Return whether a run that was lost sends heartbeats again."""
        silent_s = drained.silent_s
        is_alive = silent_s is not None and silent_s < self._limits.lost_s
        return is_alive and job.status == Status.LOST

    def _register_run(self, guest: Guest, token: int) -> None:
        if self._registered.get(guest.job_id) == guest:
            return
        try:
            is_stored = self._writes.register_guest(guest, token)
        except Exception as error:  # noqa: BLE001  # one run must not stop the scheduler
            log_failure("guest run not registered", error, job_id=guest.job_id)
            return
        if is_stored:
            self._registered[guest.job_id] = guest
            _log.info("guest run registered", job_id=guest.job_id, name=guest.name)

    def _finish_run(self, job: JobRow, end: EndRecord, token: int) -> None:
        if self._writes.finish(job, token, end=end, drained=self._reports.unstored(job)):
            self._reports.mark_stored(job.id)
            _log.info("guest run ended", job_id=job.id, status=end.status)

    def _forget_ended(self, job_ids: Iterable[str]) -> None:
        """Confirm the last records of ended runs, and have the cluster forget each run later.

        A run that waits for the confirmation of its end would send everything again to an actor
        that has forgotten it.
        """
        now = self._monotonic()
        self._ended_at = {job_id: self._ended_at.get(job_id, now) for job_id in job_ids}
        for job_id, ended_at in list(self._ended_at.items()):
            job = self._jobs.get(job_id)
            if job is not None:
                self._runtime.drain(job_id, cursor_of(job))
            if now - ended_at >= self._limits.lost_s:
                self._runtime.forget_guest(job_id)
                del self._ended_at[job_id]
