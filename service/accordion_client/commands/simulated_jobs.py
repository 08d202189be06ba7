"""Simulated runs as jobs that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from accordion_client.commands.compared_history import ComparedHistory, keep_compared
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.errors import SettingsError
from accordion_workers.simulation.simulated_runs import (
    RunError,
    SimulatedRun,
    SimulatedStatus,
    list_runs,
    read_epochs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A simulated run, as a `ComparedSource`."""

    id: str
    name: str
    status: SimulatedStatus
    message: str
    """Why it failed."""
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    workers: int
    """Number of simulated workers."""
    kind: Kind = Kind.JOB
    priority: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    progress: None = field(default=None)


def list_simulated(folder: Path) -> list[ComparedHistory]:
    """Return the runs in a folder of simulations; none if it is no such folder.

    Raises:
        SettingsError: a run is damaged, or cannot be read.
    """
    try:
        return [read_simulated(place, run) for place, run in list_runs(folder)]
    except RunError as error:
        raise SettingsError(str(error)) from error
    except OSError as error:
        raise SettingsError(
            f"{error.filename or folder} cannot be read ({error.strerror}); give a job, or a folder"
            " of simulations that you may read"
        ) from error


def read_simulated(place: Path, run: SimulatedRun) -> ComparedHistory:
    """Return a run in its folder with the epochs that it has finished."""
    labels = run.spec.get("labels", {})
    folder = place.resolve()
    job = SimulatedJob(
        id=str(folder),
        name=f"{folder.parent.name}/{folder.name}",
        status=run.status,
        message=run.message,
        spec=run.spec,
        labels=labels if isinstance(labels, Mapping) else {},
        workers=run.workers,
    )
    return ComparedHistory(job=job, epochs=[keep_compared(row) for row in read_epochs(place)])
