"""A service whose jobs have loggers, which are served when a test says so."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.loggers.address_guard import AddressGuard
from accordion_service.loggers.process import LoggerProcess
from accordion_service.loggers.turns import LoggerTurns
from accordion_service.store.reads.loggers import read_loggers
from accordion_service.store.tables.models import LoggerRow
from tests.api.world import World

KINDS: dict[str, dict[str, Any]] = {
    "tensorboard": {"kind": "tensorboard"},
    "mlflow": {"kind": "mlflow", "experiment": "digits"},
    "wandb": {"kind": "wandb", "project": "digits", "mode": "offline"},
}
"""A logger of each kind that needs no server."""


def make_mlflow_file(folder: Path) -> Path:
    """Make an SQLite file with the tables of MLflow."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file = folder / "mlflow.db"
    SqlAlchemyStore(f"sqlite:///{file}", f"{file}-artifacts").engine.dispose()
    return file


class LoggerWorld(World):
    """A world without the process that serves loggers: its clock is not that of the tests."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(LoggerProcess, "start_if_due", lambda _: None)
        # Other tests resolve names without the guard.
        monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
        super().__init__(home, **settings)
        self.mlflow_file: Path | None = None
        """Where set, the SQLite files of MLflow begin as copies of this one."""
        self.guard = AddressGuard(self.settings.webhook_networks)
        self.guard.install()
        self.turns = self.new_turns()

    def submit(self, **changes: Any) -> str:
        job_id = super().submit(**changes)
        if self.mlflow_file is not None:
            folder = self.settings.loggers_of(job_id)
            folder.mkdir(parents=True)
            for number in range(len(changes["loggers"])):
                shutil.copy(self.mlflow_file, folder / f"mlflow-{number}.db")
        return job_id

    def new_turns(self) -> LoggerTurns:
        """The loggers as a new process serves them."""
        return LoggerTurns(self.database, self.settings, clock=self.clock, guard=self.guard.limit)

    def serve(self, job_id: str, number: int = 0) -> LoggerRow:
        """Let the logger's time come, give it a turn, and return its row."""
        row = self.logger(job_id, number)
        self.clock.now = max(self.clock.now, row.next_turn_at or 0.0)
        self.turns.serve((job_id, number))
        return self.logger(job_id, number)

    def logger(self, job_id: str, number: int = 0) -> LoggerRow:
        return read_loggers(self.database, job_id)[number]

    def state(self, job_id: str, number: int = 0) -> LoggerState:
        return LoggerState(self.logger(job_id, number).state)

    def train_epochs(self, job_id: str, epochs: int) -> None:
        """Turn until so many epochs are stored."""
        self.turn_until(lambda: len(self.epochs(job_id)) >= epochs)

    def close(self) -> None:
        self.turns.close()
        super().close()
