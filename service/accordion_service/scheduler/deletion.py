"""Removes the files of deleted jobs, in a thread of the scheduler."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

import structlog

from accordion_service.runtime.protocol import Runtime
from accordion_service.settings.settings import Settings
from accordion_service.store.tables.models import DeletedJobRow
from accordion_service.store.writes.deletion import DeletedJobs

INTERVAL_S = 5.0
"""Seconds between two looks for deleted jobs."""
RETRY_S = 600.0
"""Seconds until files that could not be removed are tried again."""
_BATCH = 100
_log = structlog.get_logger()


class FileRemoval:
    """Removes checkpoints, journals, end files and files of loggers; safe to run in two schedulers
    at once.
    """

    def __init__(
        self,
        deleted: DeletedJobs,
        runtime: Runtime,
        settings: Settings,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._deleted = deleted
        self._runtime = runtime
        self._settings = settings
        self._monotonic = monotonic
        self._looked_at: float | None = None
        self._retry_at: dict[str, float] = {}
        """When a job whose files could not be removed is tried again."""
        self._thread: threading.Thread | None = None

    def start_if_due(self) -> None:
        """Start removing the files of deleted jobs, unless that is going on; storages may be slow,
        and the scheduler's lease is short.
        """
        now = self._monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or (self._looked_at is not None and now - self._looked_at < INTERVAL_S):
            return
        self._looked_at = now
        self._retry_at = {job_id: at for job_id, at in self._retry_at.items() if at > now}
        rows = self._deleted.list_oldest(_BATCH, without=self._retry_at)
        if rows:
            self._thread = threading.Thread(
                target=self._remove_all, args=(rows,), name="file-removal", daemon=True
            )
            self._thread.start()

    def _remove_all(self, rows: list[DeletedJobRow]) -> None:
        for row in rows:
            try:
                self._remove_files(row)
            except Exception:  # noqa: BLE001  # one storage that fails must not block the others
                self._retry_at[row.job_id] = self._monotonic() + RETRY_S
                _log.exception("files of a deleted job remain", job_id=row.job_id)

    def _remove_files(self, row: DeletedJobRow) -> None:
        storage, loggers = (
            self._settings.storage_of(row.job_id),
            self._settings.loggers_of(row.job_id),
        )
        try:
            self._runtime.remove_files(row.job_id, storage, row.storage_url)
            if loggers.exists():
                shutil.rmtree(loggers)
        except OSError as error:
            self._retry_at[row.job_id] = self._monotonic() + RETRY_S
            _log.warning("files of a deleted job remain", job_id=row.job_id, error=str(error))
            return
        self._deleted.forget(row.job_id)
        _log.info("files of a deleted job removed", job_id=row.job_id)
