"""Starts the process that serves loggers, and starts it again while it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import structlog

from accordion_service.process.child_processes import inherit_environment, restart_delay_s
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.writes.logger_queue import LoggerQueue

INTERVAL_S = 1.0
"""Seconds between two looks for loggers that are due."""
STOP_S = 2.0
"""Longest wait for the end of the process."""
_MODULE = "accordion_service.loggers.serving"
_SEES = frozenset(
    {
        "CURL_CA_BUNDLE",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONPATH",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
_SEES_FAMILIES = ("LC_", "PG")
"""Beginnings of further names; `PG` is for the database."""
_log = structlog.get_logger()


class LoggerProcess:
    """The child process of a scheduler. Only one thread may call it."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._queue = LoggerQueue(database, clock)
        self._settings = settings
        self._monotonic = monotonic
        self._process: subprocess.Popen[bytes] | None = None
        self._look_at: float | None = None
        """When to look again; None for at once."""
        self._deaths = 0
        """Exits in a row that were no regular end, and starts that failed."""

    def start_if_due(self) -> None:
        """Start the process if a logger is due and it does not run."""
        now = self._monotonic()
        if self._look_at is not None and now < self._look_at:
            return
        self._look_at = now + INTERVAL_S
        if self._process is not None and not self._reap(self._process, now):
            return
        if not self._queue.has_due():
            return
        try:
            self._process = self._start()
        except OSError as error:
            self._delay_start(now)
            _log.warning("logger process not started", error=str(error))
            return
        _log.info("logger process began", pid=self._process.pid)

    def stop(self) -> None:
        """End the process; it may be needed again."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            # Its end tells the process to end.
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: modules in the current folder must not replace installed ones.
        return subprocess.Popen(  # noqa: S603 - a module of this project
            [sys.executable, "-P", "-m", _MODULE],
            env=_build_environment(self._settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _delay_start(self, now: float) -> None:
        self._deaths += 1
        self._look_at = now + restart_delay_s(self._deaths)

    def _reap(self, process: subprocess.Popen[bytes], now: float) -> bool:
        """Return whether the process has ended and its successor may start now."""
        code = process.poll()
        if code is None:
            return False
        self.stop()
        if not code:
            self._deaths = 0
            return True
        self._delay_start(now)
        _log.warning("logger process exited", code=code)
        return False


def _build_environment(settings: Settings) -> dict[str, str]:
    """Return what the process sees: its settings, but no other secrets, and nothing that packages
    of loggers take from an environment, such as proxies and keys.
    """
    seen = inherit_environment(lambda name: name in _SEES or name.startswith(_SEES_FAMILIES))
    own = {
        "ACCORDION_HOME": str(settings.home),
        "ACCORDION_DATABASE_URL": settings.database,
        "ACCORDION_LOG_LEVEL": settings.log_level,
        "ACCORDION_WANDB_URL": settings.wandb_url,
        "ACCORDION_WEBHOOK_NETWORKS": ",".join(map(str, settings.webhook_networks)),
    }
    if settings.logger_folder is not None:
        own["ACCORDION_LOGGER_FOLDER"] = str(settings.logger_folder)
    if settings.secrets_key_text is not None:
        own["ACCORDION_SECRETS_KEY"] = settings.secrets_key_text.get_secret_value()
    if settings.secrets_key_file is not None:
        own["ACCORDION_SECRETS_KEY_FILE"] = str(settings.secrets_key_file)
    return {**seen, **own}


__all__ = ["LoggerProcess"]
