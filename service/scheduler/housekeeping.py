"""What the scheduler does now and then: it removes uploads, ended jobs, checkpoints, old rows and
files that nothing needs, delivers the messages of webhooks, and starts the process that serves
loggers.
"""

from __future__ import annotations

from collections.abc import Callable

from service.job_inputs.code import CodeStore
from service.loggers.process import LoggerProcess
from service.runtime.protocol import Runtime
from service.scheduler.checkpoints import CheckpointRemoval
from service.scheduler.code import CodePruning
from service.scheduler.deletion import FileRemoval
from service.scheduler.retention import HistoryRetention, Retention, RowRetention
from service.scheduler.webhooks import WebhookDelivery
from service.settings.settings import Settings
from service.store.engine.database import Database
from service.store.reads.repository import Repository
from service.store.writes.deletion import DeletedJobs
from service.store.writes.scheduler_counts import SchedulerCounts


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
            code, Repository(database), clock=clock, monotonic=monotonic, kept_s=kept_s
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
