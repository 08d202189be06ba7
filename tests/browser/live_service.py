"""A whole service in this process: the api on a real port, the scheduler, and the scripted cluster
under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from accordion_client.sdk.client import IDLE_CONNECTION_S
from accordion_service.api.app import create_app
from accordion_service.scheduler.loop import run_scheduler
from accordion_service.settings.settings import Settings, load_settings
from tests.api.fake_runtime import FakeRuntime
from tests.conftest import free_port

TICKS_PER_EPOCH = 2
TICK_S = 0.2
PATIENCE_S = 120.0
POLL_S = 0.05


class Api:
    """The api on its port, which may stop and come back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self) -> None:
        """Until it answers."""
        self._app = create_app(self._settings)
        where = {"host": self._settings.host, "port": self._settings.port}
        self._server = uvicorn.Server(
            uvicorn.Config(self._app, **where, log_config=None, timeout_graceful_shutdown=5)
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            self._thread.join(POLL_S)

    def stop(self) -> None:
        """Until nobody listens; its streams end."""
        self._app.state.accordion.draining.set()
        self._server.should_exit = True
        self._thread.join()
        self._app.state.accordion.database.close()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Running while the block does."""
        self.start()
        try:
            yield
        finally:
            self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveService:
    """Where it listens, and the cluster that its scheduler sees."""

    url: str
    runtime: FakeRuntime
    client: httpx2.Client
    api: Api

    def submit(self, name: str = "digits", epochs: int = 12, **spec: Any) -> str:
        """Id of a new job."""
        body = {"name": name, "task": {"name": "digits-mlp"}, "training": {"epochs": epochs}} | spec
        return str(self.client.post("/api/v1/jobs", json=body).raise_for_status().json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job now."""
        return dict(self.client.get(f"/api/v1/jobs/{job_id}").raise_for_status().json())

    def num_epochs(self, job_id: str) -> int:
        """Epochs it has finished."""
        return len(
            self.client.get(f"/api/v1/jobs/{job_id}/epochs").raise_for_status().json()["items"]
        )

    def wait_for_registration(self, job_id: str) -> None:
        """Until the service knows the guest run."""
        wait_until(
            lambda: self.client.get(f"/api/v1/jobs/{job_id}").is_success,
            f"guest run {job_id} is known",
        )

    def wait_for_epochs(self, job_id: str, count: int) -> None:
        """Until the job has finished so many."""
        wait_until(
            lambda: self.num_epochs(job_id) >= count, f"job {job_id} finishes {count} epochs"
        )

    def wait_for_workers(self, job_id: str, count: int) -> None:
        """Until so many train the job."""
        wait_until(
            lambda: self.job(job_id)["world_size"] == count, f"{count} workers train job {job_id}"
        )

    def queue_entry(self, job_id: str) -> dict[str, Any]:
        """What the queue says of the job; empty if it does not wait."""
        items = self.client.get("/api/v1/queue").raise_for_status().json()["items"]
        return next((dict(entry) for entry in items if entry["id"] == job_id), {})

    def wait_for_queue(self, job_id: str, text: str) -> None:
        """Until the queue says that of the job."""
        wait_until(
            lambda: text in str(self.queue_entry(job_id)), f"the queue says {text} of {job_id}"
        )

    def wait_for_end(self, job_id: str) -> None:
        """Until the job is over."""
        wait_until(lambda: self.job(job_id)["ended_at"] is not None, f"job {job_id} ends")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {PATIENCE_S:g} s it did not happen that {what}")
        time.sleep(POLL_S)


@contextmanager
def live_service(home: Path, **given: Any) -> Iterator[LiveService]:
    """The service while the block runs; `given` are settings."""
    settings = load_settings(
        home=home, port=free_port(), drain_interval_s=TICK_S, survey_interval_s=TICK_S, **given
    )
    runtime = FakeRuntime(clock=time.time, cpus=(4.0, 4.0), ticks_per_epoch=TICKS_PER_EPOCH)
    url = f"http://127.0.0.1:{settings.port}"
    headers = {"Authorization": f"Bearer {settings.token()}"} if settings.token() else {}
    api = Api(settings)
    with (
        api.open(),
        _scheduler(settings, runtime),
        httpx2.Client(
            base_url=url,
            headers=headers,
            timeout=PATIENCE_S,
            limits=httpx2.Limits(keepalive_expiry=IDLE_CONNECTION_S),
        ) as client,
    ):
        yield LiveService(url=url, runtime=runtime, client=client, api=api)


@contextmanager
def _scheduler(settings: Settings, runtime: FakeRuntime) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_scheduler, args=(settings, runtime), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
