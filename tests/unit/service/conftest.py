"""The command line against a live service over the scripted cluster."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accordion_client import AsyncClient, Client, RetryBudget
from accordion_client.commands import login
from accordion_client.commands.cli_app import run_command
from accordion_client.sdk import request_sender
from accordion_service.store.engine.database import Database
from tests.api.conftest import Live, serve_live
from tests.unit.service.event_loop import InEventLoop

SPEC = "name: NAME\ntask: {name: digits-mlp}\ntraining: {epochs: 3}\n"
LONG = ("--set", "training.epochs=2000")
"""A hundred seconds on the scripted cluster; a test that needs a running job cancels it."""


@dataclass
class Said:
    """What one call of the command line gave."""

    code: int
    out: str
    err: str

    def json(self) -> dict:
        assert self.out, f"nothing was printed: {self.err}"
        return json.loads(self.out)


Accordion = Callable[..., Said]
Printed = Callable[[Callable[[str], object]], None]
MakeClient = Callable[..., Client]


@pytest.fixture(scope="module", autouse=True)
def _patient_clients() -> Iterator[None]:
    """A test process on a busy machine may get no CPU for ten seconds, after which a client would
    give a request up, and its command print nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patient = RetryBudget(timeout_s=120.0, total_s=240.0)
        patch.setattr(request_sender, "DEFAULT_RETRIES", patient)
        patch.setenv("ACCORDION_REQUEST_TIMEOUT_S", "120")
        patch.setenv("ACCORDION_REQUEST_TOTAL_S", "240")
        yield


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture(params=[Client, AsyncClient])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes clients with the interface of `Client`, of both kinds; closed after the test."""
    with ExitStack() as clients:

        def make(*args: Any, **options: Any) -> Any:
            made = request.param(*args, **options)
            client = InEventLoop(made) if isinstance(made, AsyncClient) else made
            clients.callback(client.close)
            return client

        yield make


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        # An earlier test may have left loggers of the standard library, and a handler whose stream
        # is closed.
        patch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
        yield from serve_live(tmp_path_factory.mktemp("service"))


@pytest.fixture
def alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Accordion:
    """The command line in a home directory of its own, where nothing runs."""
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACCORDION_PORT", "1")
    monkeypatch.delenv("ACCORDION_URL", raising=False)

    def call(*arguments: object) -> Said:
        code = run_command([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Printed]:
    """Calls a function, in a thread, with the address that the next `accordion login` prints."""
    threads: list[threading.Thread] = []
    echo = login.typer.echo

    def watch(open_address: Callable[[str], object]) -> None:
        def say(text: str, **more: object) -> None:
            echo(text, **more)
            if "open in a browser: " in text:
                address = text.partition(": ")[2]
                threads.append(threading.Thread(target=open_address, args=(address,)))
                threads[-1].start()

        monkeypatch.setattr(login.typer, "echo", say)

    yield watch
    for thread in threads:
        thread.join()


@pytest.fixture
def accordion(alone: Accordion, service: Live, monkeypatch: pytest.MonkeyPatch) -> Accordion:
    """The command line beside the live service."""
    monkeypatch.setenv("ACCORDION_URL", service.url)
    return alone


@pytest.fixture
def spec(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file whose job is named after the test."""
    file = tmp_path / "job.yaml"
    file.write_text(SPEC.replace("NAME", job_name(request)))
    return file


def job_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)[:60].strip("-_")


@pytest.fixture
def running(accordion: Accordion, spec: Path, service: Live) -> Iterator[str]:
    """Id of a job that trains for as long as the test needs it."""
    job_id = accordion("submit", spec, *LONG, "--json").json()["id"]
    with Client(service.url) as client:
        next(event for event in client.events(job_id) if getattr(event, "type", "") == "epoch")
        yield job_id
        client.cancel(job_id)
