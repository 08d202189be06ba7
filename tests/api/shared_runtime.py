"""A scripted cluster that schedulers in processes of their own share.

`python -m tests.api.shared_runtime` runs a scheduler, with the settings and the address of the
cluster in its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from accordion_service.scheduler.loop import run_scheduler
from accordion_service.settings.settings import load_settings
from tests.api.fake_runtime import FakeRuntime

ROOT = Path(__file__).parents[2]
ADDRESS, KEY = "SHARED_RUNTIME_ADDRESS", "SHARED_RUNTIME_KEY"
"""Variables that lead a scheduler to the cluster."""


class RuntimeServer:
    """Answers the calls of other processes to a cluster of this one."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime, self._key = runtime, os.urandom(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=self._key)
        threading.Thread(target=self._accept, daemon=True).start()

    def start_scheduler(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a scheduler on the cluster."""
        _, port = self._listener.address
        where = {ADDRESS: str(port), KEY: self._key.hex(), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.api.shared_runtime"]
        variables = {**os.environ, **environment, **where}
        return subprocess.Popen(command, env=variables, cwd=ROOT, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        """Accept no more processes."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # the process is gone
            while True:
                name, args, more = connection.recv()
                connection.send(self._call(name, args, more))

    def _call(self, name: str, args: Any, more: Any) -> tuple[Any, Exception | None]:
        try:
            return getattr(self._runtime, name)(*args, **more), None
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return None, error


class RemoteRuntime:
    """The cluster of another process; any thread may call it."""

    def __init__(self, port: int, key: bytes) -> None:
        self._connection, self._lock = Client(("127.0.0.1", port), authkey=key), threading.Lock()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            with self._lock:
                self._connection.send((name, args, more))
                result, error = self._connection.recv()
            if error is not None:
                raise error
            return result

        return call


if __name__ == "__main__":
    cluster: Any = RemoteRuntime(int(os.environ[ADDRESS]), bytes.fromhex(os.environ[KEY]))
    run_scheduler(load_settings(), cluster, stop=threading.Event())
