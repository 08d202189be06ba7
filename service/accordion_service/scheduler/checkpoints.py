"""Removes checkpoints of jobs that ended a while ago, in a thread of the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set

import structlog

from accordion_service.job_inputs.checkpoints import find_kept
from accordion_service.process.trusted_clock import TrustedClock
from accordion_service.runtime.protocol import Runtime
from accordion_service.scheduler.retention import RETENTION
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.tables.models import CheckpointRow, JobRow
from accordion_service.store.tables.stored_spec import spec_value
from accordion_service.store.writes.expired_checkpoints import ExpiredCheckpoints

INTERVAL_S = 60.0
"""Seconds between two looks for ended jobs."""
RETRY_S = 600.0
"""Seconds until checkpoints that could not be removed are tried again."""
_BATCH = 50
_log = structlog.get_logger()


class CheckpointRemoval:
    """Keeps the newest and the best checkpoint of a job, or none, as the settings say; safe to run
    in two schedulers at once.
    """

    def __init__(
        self,
        database: Database,
        runtime: Runtime,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._expired = ExpiredCheckpoints(database, clock, RETENTION)
        self._history = HistoryReads(database)
        self._runtime = runtime
        self._settings = settings
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._monotonic = monotonic
        self._looked_at: float | None = None
        self._retry_at: dict[str, float] = {}
        """When a job whose checkpoints could not be removed is tried again."""
        self._thread: threading.Thread | None = None

    def start_if_due(self) -> None:
        """Start removing checkpoints, unless that is going on: storages may be slow, and the
        scheduler's lease is short.
        """
        now, kept_s = self._monotonic(), self._settings.checkpoint_retention_s
        is_busy = self._thread is not None and self._thread.is_alive()
        is_early = self._looked_at is not None and now - self._looked_at < INTERVAL_S
        if not kept_s or is_busy or is_early:
            return
        self._retry_at = {job_id: at for job_id, at in self._retry_at.items() if at > now}
        time = self._trusted.read(kept_s)
        if time is None:
            return
        rows = self._expired.list_due(
            ended_before=time - kept_s, limit=_BATCH, without=self._retry_at
        )
        # More may be left: the next turn goes on.
        self._looked_at = None if len(rows) == _BATCH else now
        if rows:
            self._thread = threading.Thread(
                target=self._remove_all, args=(rows,), name="checkpoint-removal", daemon=True
            )
            self._thread.start()

    def _remove_all(self, jobs: list[JobRow]) -> None:
        for job in jobs:
            try:
                self._remove_from(job)
            except OSError as error:
                self._retry_at[job.id] = self._monotonic() + RETRY_S
                _log.warning("checkpoints of an ended job remain", job_id=job.id, error=str(error))
            except Exception:  # noqa: BLE001  # one storage that fails must not block the others
                self._retry_at[job.id] = self._monotonic() + RETRY_S
                _log.exception("checkpoints of an ended job remain", job_id=job.id)

    def _remove_from(self, job: JobRow) -> None:
        place = job.id, self._settings.storage_of(job.id)
        url = spec_value(job, "checkpoint.storage", "") or None
        found = self._runtime.list_checkpoints(*place, url)
        kept: Set[str] = frozenset()
        if self._settings.ended_checkpoints == "newest_and_best":
            mode = spec_value(job, "objective.mode", "")
            kept = choose_kept(found, self._history.checkpoints(job.id), mode=mode)
        removed = found.keys() - kept
        if not self._expired.begin_removal(job, kept=kept):
            return
        self._runtime.remove_checkpoints(*place, url, names=sorted(removed))
        self._expired.mark_removed(job, kept=kept, removed=removed)
        _log.info("checkpoints removed", job_id=job.id, removed=len(removed), kept=len(kept))


def choose_kept(
    found: Mapping[str, bool], reported: Sequence[CheckpointRow], *, mode: str
) -> Set[str]:
    """Return the names of the newest and the best checkpoint, of those that are there.

    The newest one that a worker group reported may be older than the newest one that is there,
    which a group that was given up may have completed; both are kept.

    Args:
        found: checkpoints on the storage, and whether each is complete.
        reported: checkpoints of the job's history.
        mode: `min` or `max`, by which an objective is better; empty without an objective.
    """
    complete = {name for name, is_complete in found.items() if is_complete}
    kept = find_kept([row for row in reported if row.name in complete], keep=1, mode=mode)
    return kept.names | ({max(complete)} if complete else set())


__all__ = ["INTERVAL_S", "RETRY_S", "CheckpointRemoval", "choose_kept"]
