"""`accordion down`: stops the service that `accordion up` runs on a home directory."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from accordion_client.machine.up import STOP_TIMEOUT_S
from accordion_service.errors import StartError
from accordion_service.settings.home import Home, Running

_LOOK_INTERVAL_S = 0.1


def down(home: Home, *, at_once: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> Running | None:
    """Stop the service, and wait until it has stopped; return what ran, None if nothing did.

    Running jobs have time to save besides `timeout_s`, unless it stops `at_once`.

    Raises:
        StartError: it belongs to another user, or does not stop.
    """
    running = home.running()
    if running is None:
        return None
    try:
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGQUIT if at_once else signal.SIGTERM)
    except PermissionError as error:
        raise StartError(
            f"process {running.pid}, which runs the service in {home.path}, belongs to another"
            " user; ask that user to stop it"
        ) from error
    timeout_s += running.grace_s
    deadline = time.monotonic() + timeout_s
    while home.running() is not None:
        if time.monotonic() > deadline:
            raise StartError(
                f"process {running.pid} has not stopped within {timeout_s:g} s; end it with"
                f" 'kill -9 {running.pid}', after which jobs continue from their checkpoints"
            )
        time.sleep(_LOOK_INTERVAL_S)
    return running
