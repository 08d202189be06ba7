"""What the scheduler does now and then: it removes uploads, ended jobs, checkpoints, old rows and
files that nothing needs, delivers the messages of webhooks, and starts the process that serves
loggers.
"""

from __future__ import annotations

from collections.abc import Callable

from accordion_service.job_inputs.code import CodeStore
from accordion_service.loggers.process import LoggerProcess
from accordion_service.runtime.protocol import Runtime
from accordion_service.scheduler.checkpoints import CheckpointRemoval
from accordion_service.scheduler.code import CodePruning
from accordion_service.scheduler.deletion import FileRemoval
from accordion_service.scheduler.retention import HistoryRetention, Retention, RowRetention
from accordion_service.scheduler.webhooks import WebhookDelivery
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.writes.deletion import DeletedJobs
from accordion_service.store.writes.scheduler_counts import SchedulerCounts


class Housekeeping:
    """Runs each task when it is due; `clock` returns seconds since 1970."""

    def __init__(
        self,
        database: Database,
        runtime: Runtime,
        settings: Settings,
        *,
        code: CodeStore,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        counts: SchedulerCounts,
    ) -> None:
        kept_s = settings.code_retention_s
        self._uploads = CodePruning(
            code, JobReads(database), clock=clock, monotonic=monotonic, kept_s=kept_s
        )
        self._jobs = Retention(database, settings, clock=clock, monotonic=monotonic)
        self._history = HistoryRetention(database, settings, clock=clock, monotonic=monotonic)
        self._rows = RowRetention(database, settings, clock=clock, monotonic=monotonic)
        self._files = FileRemoval(DeletedJobs(database), runtime, settings, monotonic=monotonic)
        self._checkpoints = CheckpointRemoval(
            database, runtime, settings, clock=clock, monotonic=monotonic
        )
        self._webhooks = WebhookDelivery(
            database, settings, clock=clock, monotonic=monotonic, counts=counts
        )
        self._loggers = LoggerProcess(database, settings, clock=clock, monotonic=monotonic)

    def run_if_due(self) -> None:
        """Remove and deliver what is due."""
        self._uploads.prune_if_due()
        self._jobs.delete_if_due()
        self._history.trim_if_due()
        self._rows.delete_if_due()
        self._files.start_if_due()
        self._checkpoints.start_if_due()
        self._webhooks.start_if_due()
        self._loggers.start_if_due()

    def stop(self) -> None:
        """Stop delivering, and serving loggers."""
        self._webhooks.stop()
        self._loggers.stop()
