"""Simulated runs as jobs that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from accordion_client.commands.comparison import ComparedHistory, keep_compared
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
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    kind: Kind = Kind.JOB
    priority: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    progress: None = field(default=None)


def list_simulated(folder: Path) -> list[ComparedHistory]:
    """Return the runs in a folder of simulations; none if it is no such folder.

    Raises:
        SettingsError: a run is damaged.
    """
    try:
        return list(_read(folder))
    except RunError as error:
        raise SettingsError(str(error)) from error


def _read(folder: Path) -> Iterator[ComparedHistory]:
    for place, run in list_runs(folder):
        job = SimulatedJob(
            id=str(place.absolute()),
            name=f"{place.parent.name}/{place.name}",
            status=run.status,
            spec=run.spec,
            labels=_read_labels(run),
        )
        epochs = [keep_compared(row) for row in read_epochs(place)]
        yield ComparedHistory(job=job, epochs=epochs)


def _read_labels(run: SimulatedRun) -> Mapping[str, str]:
    labels = run.spec.get("labels", {})
    return labels if isinstance(labels, Mapping) else {}
