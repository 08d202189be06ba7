"""The process that serves loggers. The scheduler starts it, and it ends when its standard input
does, so that it never outlives the scheduler; it also ends when nothing was due for a while.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping

import structlog

from accordion_service.loggers.address_guard import AddressGuard
from accordion_service.loggers.turns import LoggerTurns
from accordion_service.process.logs import configure_logs
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.engine.database import Database

INTERVAL_S = 1.0
"""Seconds between two looks for loggers that are due."""
IDLE_S = 600.0
"""Seconds without a logger to serve after which the process ends; the scheduler starts another one
when it is needed.
"""
_PACKAGE_SETTINGS: Mapping[str, str] = {
    # Two requests of 10 s each; the next turn tries again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A server could make a thread wait for as long as it likes.
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    # What the service's own user may log in to is not for the users of the service.
    "NETRC": os.devnull,
}
_log = structlog.get_logger()


def run_loggers(
    database: Database, settings: Settings, *, stop: threading.Event, idle_s: float = IDLE_S
) -> None:
    """Serve loggers until `stop` is set or nothing was due for `idle_s` seconds."""
    guard = AddressGuard(settings.webhook_networks)
    guard.install()
    turns = LoggerTurns(database, settings, clock=time.time, guard=guard.limit)
    busy_at = time.monotonic()
    while not stop.is_set() and time.monotonic() - busy_at < idle_s:
        try:
            if turns.start_due():
                busy_at = time.monotonic()
        except Exception:  # noqa: BLE001  # the loop's one catch-all: log, and retry
            _log.exception("loggers")
        stop.wait(INTERVAL_S)


def serve_loggers(settings: Settings) -> None:
    """Serve loggers until standard input ends.

    Raises:
        SettingsError: a setting is wrong.
    """
    configure_logs(settings.log_level, "loggers")
    os.environ.update(package_settings(settings))
    stop = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    run_loggers(Database(settings.database), settings, stop=stop)
    sys.stderr.flush()
    # Without waiting for turns in flight: what they send is sent again, and not doubled.
    os._exit(0)


def package_settings(settings: Settings) -> dict[str, str]:
    """Return the variables by which the packages of loggers behave as this process needs it."""
    names = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    return {**_PACKAGE_SETTINGS, **dict.fromkeys(names, str(settings.loggers_of(".wandb")))}


def _wait_for_end(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop.set()


if __name__ == "__main__":
    serve_loggers(load_settings())
