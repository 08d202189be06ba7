"""Removes uploads that no job needs any more, now and then."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from service.code import CodeStore
from service.store.repository import Repository

_MOST_INTERVAL_S = 3600.0
"""Distance between two looks; a small part of the time that uploads are kept."""
_log = structlog.get_logger()


class CodePruning:
    """Prunes the store of uploads once an interval. Two schedulers may do so at the same time."""

    def __init__(self, code: CodeStore, repository: Repository, *, passed: Callable[[], float], kept_s: float) -> None:
        self._code = code
        self._repository = repository
        self._passed = passed
        self._kept_s = kept_s
        self._pruned_at: float | None = None

    def prune_if_due(self) -> None:
        """Remove uploads that no job names and that nobody asked for in `kept_s` seconds."""
        now = self._passed()
        if self._pruned_at is not None and now - self._pruned_at < min(_MOST_INTERVAL_S, self._kept_s):
            return
        self._pruned_at = now
        try:
            gone = self._code.prune(self._repository.named_code(), older_than_s=self._kept_s)
        except OSError as error:
            _log.warning("uploads cannot be removed", error=str(error))
            return
        if gone:
            _log.info("uploads removed", files=gone)
