"""What the scheduler logs of its lease, of outages, and of errors: a line when something changes,
not one in every turn.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from accordion_service.store.engine.database_errors import ErrorKind, classify_error

REPEAT_S = 60.0
"""Interval, in seconds, between two lines of an outage that lasts."""
_log = structlog.get_logger()


class LeaseLog:
    """Logs once that the lease is taken, that it is lost, and that another scheduler has it."""

    def __init__(self) -> None:
        self._taken: int | None = None
        self._lost: int | None = None
        self._stands_by = False

    def note_holder(self, token: int | None) -> None:
        """Note who holds the lease: this scheduler with a token, or another one (None)."""
        if token is not None:
            if token != self._taken:
                _log.info("lease taken", token=token)
            self._taken, self._stands_by = token, False
        elif self._taken != self._lost:
            _log.warning("lease lost", token=self._taken)
            self._lost, self._stands_by = self._taken, True
        elif not self._stands_by:
            _log.info("standing by", reason="another scheduler holds the lease")
            self._stands_by = True


class OutageLog:
    """Logs that something fails, once a minute that it still does, and that it works again."""

    def __init__(self, what: str, monotonic: Callable[[], float]) -> None:
        self._what = what
        self._monotonic = monotonic
        self._began_at: float | None = None
        self._told_at = 0.0

    def note_failure(self, error: str) -> None:
        """Log the outage, if that is due."""
        now = self._monotonic()
        if self._began_at is None:
            self._began_at = now
        elif now - self._told_at < REPEAT_S:
            return
        self._told_at = now
        _log.warning(f"{self._what} fails", error=error, since_s=round(now - self._began_at))

    def note_success(self) -> None:
        """Log that the outage is over, if there was one."""
        if self._began_at is not None:
            outage_s = round(self._monotonic() - self._began_at)
            _log.info(f"{self._what} works again", outage_s=outage_s)
            self._began_at = None


def is_outage(error: Exception) -> bool:
    """Return whether the database does not take a statement now, whatever the statement."""
    return classify_error(error) not in {None, ErrorKind.OTHER}


def describe_outage(error: Exception) -> str:
    """Describe an error of the database in one line, without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def log_failure(event: str, error: Exception, **fields: object) -> None:
    """Log what ended a part of a turn; only an unexpected error has a traceback."""
    if is_outage(error):
        _log.warning(event, error=describe_outage(error), **fields)
    else:
        _log.error(event, exc_info=error, **fields)
