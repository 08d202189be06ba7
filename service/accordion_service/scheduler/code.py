"""Periodically removes uploads that no job needs."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from accordion_service.job_inputs.code import CodeStore
from accordion_service.process.trusted_clock import TrustedClock
from accordion_service.store.reads.jobs import JobReads

_MOST_INTERVAL_S = 3600.0
"""Longest pause between two runs; short compared with the retention time of uploads."""
_log = structlog.get_logger()


class CodePruning:
    """Prunes the upload store once per interval; safe to run in two schedulers at once."""

    def __init__(
        self,
        code: CodeStore,
        jobs: JobReads,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        kept_s: float,
    ) -> None:
        self._trusted = TrustedClock(clock=clock, monotonic=monotonic)
        self._code = code
        self._jobs = jobs
        self._monotonic = monotonic
        self._kept_s = kept_s
        self._pruned_at: float | None = None

    def prune_if_due(self) -> None:
        """Remove uploads that no job names and that were not requested for `kept_s` seconds."""
        now = self._monotonic()
        if self._pruned_at is not None and now - self._pruned_at < min(
            _MOST_INTERVAL_S, self._kept_s
        ):
            return
        if self._trusted.read(self._kept_s) is None:
            return
        self._pruned_at = now
        try:
            gone = self._code.prune(self._jobs.named_code(), older_than_s=self._kept_s)
        except OSError as error:
            _log.warning("uploads cannot be removed", error=str(error))
            return
        if gone:
            _log.info("uploads removed", files=gone)
