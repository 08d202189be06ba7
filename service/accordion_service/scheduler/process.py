"""The scheduler on a Ray cluster, as a process of its own."""

from __future__ import annotations

import os
import signal
import threading

from accordion_service.process.garbage_collection import collect_less_often
from accordion_service.process.logs import configure_logs
from accordion_service.scheduler.loop import run_scheduler
from accordion_service.settings.home import Home
from accordion_service.settings.setting_list import log_unknown_variables
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import upgrade
from accordion_service.store.reads.cluster import ClusterReads


def serve_scheduler(settings: Settings, *, ends_cluster: bool = False) -> None:
    """Run the scheduler on Ray until SIGTERM or SIGINT.

    With `ends_cluster`, the cluster stops with it: before it ends, running jobs save; a second
    signal ends it at once.

    Raises:
        SettingsError: a setting is wrong.
        StartError: the home directory or the database cannot be used.
    """
    Home(settings.home).check()
    token = settings.ray_auth_token()
    if token is not None:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    # Imports Ray, which reads its token at import.
    from accordion_service.runtime.ray_backend import RayBackend

    configure_logs(settings.log_level, "scheduler")
    log_unknown_variables()
    runtime = RayBackend(
        address=settings.ray_address, installation=_read_installation(settings.database)
    )
    stop, at_once = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: (at_once if stop.is_set() else stop).set())
    collect_less_often()
    run_scheduler(settings, runtime, stop=stop, at_once=at_once if ends_cluster else None)


def _read_installation(url: str) -> str:
    """Read the installation id from the database."""
    upgrade(url)
    database = Database(url)
    try:
        return ClusterReads(database).installation()
    finally:
        database.close()


if __name__ == "__main__":
    serve_scheduler(load_settings())
