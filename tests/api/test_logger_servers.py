"""Loggers that send to a server: a real one of MLflow, and addresses where nobody listens."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.loggers.serving import package_settings
from accordion_service.settings.secret_box import create_secret_box
from accordion_service.store.writes.logger_queue import CLAIM_S
from accordion_service.store.writes.secrets import SecretStore
from accordion_service.store.writes.steering import accept_any
from tests.api.logger_world import LoggerWorld
from tests.api.webhook_receiver import LOOPBACK
from tests.conftest import Require, free_port

KEY = "0123456789abcdef0123456789abcdef01234567"
TOKEN = {"secret": "key"}
RETRY_AFTER_S = 20


@dataclass
class Proxy:
    """What stands in front of the server: it sets cookies, and can be busy."""

    app: Any = None
    cookies: list[str] = field(default_factory=list)
    """Cookies of each request; empty without one."""
    is_busy: bool = False
    is_hostile: bool = False

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        self.cookies.append(environ.get("HTTP_COOKIE", ""))
        if self.is_busy:
            start("503 Service Unavailable", [("Retry-After", str(RETRY_AFTER_S))])
            return []
        if self.is_hostile:
            start("200 OK", [("Content-Encoding", "gzip"), ("Content-Type", "application/json")])
            return [gzip.compress(bytes(32 << 20))]
        return self.app(
            environ,
            lambda status, headers, *rest: start(
                status, [*headers, ("Set-Cookie", "session=of-ada; Path=/")], *rest
            ),
        )


@pytest.fixture(scope="module")
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture(scope="module")
def url(require: Require, tmp_path_factory: pytest.TempPathFactory, proxy: Proxy) -> Iterator[str]:
    """A server of MLflow over a file."""
    require.package("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder}/server.db")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(folder))
        from mlflow.server import app
        from werkzeug.serving import make_server

        proxy.app = app
        server = make_server("127.0.0.1", free_port(), proxy, threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def world(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoggerWorld]:
    """A service that may contact this machine, and that checks the addresses of all connections."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    world = LoggerWorld(tmp_path, monkeypatch, database_url=database_url, webhook_networks=LOOPBACK)
    for name, value in package_settings(world.settings).items():
        monkeypatch.setenv(name, value)
    encrypted = create_secret_box(world.settings).encrypt(KEY)
    SecretStore(world.database, world.clock).set_secret(FULL_ACCESS, "key", encrypted)
    yield world
    world.close()


def submit(world: LoggerWorld, url: str, **more: Any) -> str:
    return world.submit(loggers=[{"kind": "mlflow", "tracking_uri": url, **more}])


def test_a_server_gets_every_epoch_and_shows_the_run_where_the_job_says(
    world: LoggerWorld, url: str
) -> None:
    from mlflow import MlflowClient

    job_id = submit(world, url, experiment="digits", run_name="first", token=TOKEN)
    world.train_epochs(job_id, 2)
    world.serve(job_id)
    world.turns.close()
    world.turns = world.new_turns()
    world.finish(job_id)
    row = world.serve(job_id)
    assert (row.state, row.message) == (LoggerState.DONE, "")
    client = MlflowClient(url)
    run = client.get_run(row.run_id)
    assert row.location == f"{url}/#/experiments/{run.info.experiment_id}/runs/{row.run_id}"
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.tags["accordion.job_id"] == job_id
    history = client.get_metric_history(row.run_id, "eval/accuracy")
    assert [metric.step for metric in history] == [0, 1, 2, 3]


def test_a_run_whose_id_was_not_recorded_is_found_again(world: LoggerWorld, url: str) -> None:
    from mlflow import MlflowClient

    name = f"found-again-{world.database.engine.dialect.name}"
    job_id = submit(world, url, experiment=name)
    world.train_epochs(job_id, 1)
    run_id = world.serve(job_id).run_id
    with world.database.write() as session:
        row = world.logger(job_id)
        row.run_id = ""
        session.merge(row)
    world.turns = world.new_turns()
    world.finish(job_id)
    assert world.serve(job_id).run_id == run_id
    client = MlflowClient(url)
    experiment = client.get_experiment_by_name(name)
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_a_retried_job_runs_again_on_the_server(world: LoggerWorld, url: str) -> None:
    from mlflow import MlflowClient

    job_id = submit(world, url, experiment="retried")
    world.train_epochs(job_id, 1)
    world.runtime.fail(job_id, "ValueError: broken on purpose")
    world.finish(job_id)
    run_id, client = world.serve(job_id).run_id, MlflowClient(url)
    assert client.get_run(run_id).info.status == "FAILED"
    world.lifecycle.retry(job_id, accept_any)
    world.train_epochs(job_id, 2)
    world.serve(job_id)
    assert client.get_run(run_id).info.status == "RUNNING"


def test_epochs_of_an_outage_arrive_when_the_server_is_back(world: LoggerWorld, url: str) -> None:
    from mlflow import MlflowClient

    job_id = submit(world, f"http://127.0.0.1:{free_port()}", experiment="outage", token=TOKEN)
    world.train_epochs(job_id, 2)
    row = world.serve(job_id)
    assert row.state == LoggerState.FAILING
    assert "Connection refused" in row.message
    assert KEY not in row.message
    _change_uri(world, job_id, url)
    world.finish(job_id)
    row = world.serve(job_id)
    history = MlflowClient(url).get_metric_history(row.run_id, "train/loss")
    assert [metric.step for metric in history] == [0, 1, 2, 3]


def test_a_cookie_that_a_server_sets_is_never_sent(
    world: LoggerWorld, url: str, proxy: Proxy
) -> None:
    proxy.cookies.clear()
    for token in ({"token": TOKEN}, {}):
        job_id = submit(world, url, experiment="cookies", **token)
        world.train_epochs(job_id, 1)
        assert world.serve(job_id).state == LoggerState.SENDING
    assert set(proxy.cookies) == {""}


def test_a_busy_server_does_not_say_how_long_a_turn_waits(
    world: LoggerWorld, url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "is_busy", True)
    job_id = submit(world, url)
    world.train_epochs(job_id, 1)
    began = time.monotonic()
    assert world.serve(job_id).state == LoggerState.FAILING
    assert time.monotonic() - began < RETRY_AFTER_S


def test_a_server_cannot_fill_the_memory_with_its_response(
    world: LoggerWorld, url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "is_hostile", True)
    job_id = submit(world, url)
    world.train_epochs(job_id, 1)
    assert "the response is larger than 4194304 bytes" in world.serve(job_id).message


def test_an_address_that_is_not_allowed_is_not_connected_to(world: LoggerWorld, url: str) -> None:
    job_id = submit(world, "https://10.0.0.1")
    world.train_epochs(job_id, 1)
    assert "ACCORDION_WEBHOOK_NETWORKS" in world.serve(job_id).message


def test_a_key_of_an_unreachable_server_of_wandb_is_in_no_message(
    tmp_path: Path, world: LoggerWorld, require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    require.package("wandb")
    from accordion_service.loggers import wandb_sink

    monkeypatch.setattr(wandb_sink, "INIT_S", 1.0)
    settings = world.settings.model_copy(update={"wandb_url": f"http://127.0.0.1:{free_port()}"})
    world.settings = settings
    world.turns = world.new_turns()
    job_id = world.submit(loggers=[{"kind": "wandb", "project": "p", "api_key": TOKEN}])
    world.train_epochs(job_id, 1)
    row = world.serve(job_id)
    assert row.state == LoggerState.FAILING
    assert row.message
    assert KEY not in row.message
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(KEY.encode() in content for content in written)


@dataclass
class OnlineRun:
    """A run of W&B that needs no server; it keeps files below `dir`, as a real one does."""

    settings: Any
    dir: str
    url: str = "https://wandb.test/run"
    error: Exception | None = None

    def __post_init__(self) -> None:
        run = Path(self.dir) / "wandb" / "run-1"
        run.mkdir(parents=True)
        (run / "run-1.wandb").write_text("epochs")

    def log(self, values: Any, step: int) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, TimeoutError("Timed out finishing run.")])
def test_a_run_of_wandb_waits_for_limited_time_and_keeps_no_files_that_arrived(
    world: LoggerWorld, require: Require, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    require.package("wandb")
    import wandb

    runs: list[OnlineRun] = []

    def init(**given: Any) -> OnlineRun:
        runs.append(OnlineRun(given["settings"], given["dir"], error=error))
        return runs[-1]

    monkeypatch.setattr(wandb, "init", init)
    job_id = world.submit(loggers=[{"kind": "wandb", "project": "p", "api_key": TOKEN}])
    world.train_epochs(job_id, 1)
    state = world.serve(job_id).state
    assert state == (LoggerState.FAILING if error else LoggerState.SENDING)
    [run] = runs
    assert 0 < run.settings.finish_timeout < CLAIM_S
    assert run.settings.finish_timeout_raises
    assert Path(run.dir).exists() == (error is not None)


def _change_uri(world: LoggerWorld, job_id: str, url: str) -> None:
    """Let the server that the job names be at another address."""
    with world.database.write() as session:
        job = world.job(job_id)
        job.spec = {**job.spec, "loggers": [{**job.spec["loggers"][0], "tracking_uri": url}]}
        session.merge(job)
