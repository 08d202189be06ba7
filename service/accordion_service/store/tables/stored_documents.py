"""Reads JSON columns, including documents of other versions or edited by hand.

Unreadable documents are logged and replaced by an empty value, so that a bad row fails neither a
page nor a write.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import structlog
from pydantic import TypeAdapter, ValidationError

from accordion.base.messages import LayerInfo, OptionValue
from accordion_service.domain.jobs.ray_run import RayRun
from accordion_service.domain.performance.elasticity import ElasticityStats
from accordion_service.store.tables.models import AttemptRow, JobRow, OverrideRow
from accordion_workers.records.contract import Package


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Part of a stored progress that orders it."""

    attempt: int
    generation: int
    step: int
    epoch: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """A stored `StorageUse`, and when it was seen."""

    place: str
    workers: int
    hosts: int
    seen_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packages:
    """A stored `PackagesRecord`, and when it was written."""

    packages: list[Package]
    size_bytes: int
    seconds: float
    resolved_at: float


class _Column(NamedTuple):
    type: TypeAdapter[Any]
    empty: Any


_COLUMNS = {
    "labels": _Column(TypeAdapter(dict[str, str]), {}),
    "metrics": _Column(TypeAdapter(dict[str, float]), {}),
    "tally": _Column(TypeAdapter(ElasticityStats), ElasticityStats()),
    "layers": _Column(TypeAdapter(list[LayerInfo] | None), []),
    "storage": _Column(TypeAdapter(_Storage | None), None),
    "progress": _Column(TypeAdapter(_Place | None), None),
    "ray_run": _Column(TypeAdapter(RayRun | None), None),
    "packages": _Column(TypeAdapter(_Packages | None), None),
}
_OVERRIDE_COLUMNS = {
    "level": _Column(TypeAdapter(str | int | float | dict[str, OptionValue | None]), "unknown"),
    "layers": _Column(TypeAdapter(list[str]), []),
    "apply_at": _Column(TypeAdapter(str | int), "unknown"),
}
_reported: deque[tuple[str, Any, str]] = deque(maxlen=1000)
"""Table, row and column of values that were logged as unreadable; each is logged once."""
_lock = Lock()
_log = structlog.get_logger()


def stored_labels(job: JobRow) -> dict[str, str]:
    """Labels of a job."""
    return dict(_read_column(job, "labels", _COLUMNS["labels"]))


def stored_metrics(job: JobRow) -> dict[str, float]:
    """Metrics of the newest evaluation of a job."""
    return dict(_read_column(job, "metrics", _COLUMNS["metrics"]))


def stored_elasticity(row: JobRow | AttemptRow) -> ElasticityStats:
    """Cost of worker group changes of a job or an attempt."""
    tally: ElasticityStats = _read_column(row, "tally", _COLUMNS["tally"])
    return tally


def stored_layers(job: JobRow) -> list[LayerInfo]:
    """Layers of a job; empty before the workers reported them."""
    return _read_column(job, "layers", _COLUMNS["layers"]) or []


def layer_names(job: JobRow) -> list[str]:
    """Names of the layers of a job."""
    return [layer.name for layer in stored_layers(job)]


def stored_reports(job: JobRow) -> dict[str, Any]:
    """What the workers of a job reported: where its checkpoints are and which of them verified
    access (`storage`), and the `packages` that they install; None before, or if it is unreadable.
    """
    names = ("storage", "packages")
    readable = (name for name in names if _read_column(job, name, _COLUMNS[name]) is not None)
    return dict.fromkeys(names) | {name: getattr(job, name) for name in readable}


def stored_ray_run(job: JobRow) -> RayRun | None:
    """What runs the newest worker group in Ray; None if it is not known."""
    run: RayRun | None = _read_column(job, "ray_run", _COLUMNS["ray_run"])
    return run


def stored_progress(job: JobRow) -> dict[str, Any] | None:
    """Newest progress of a job, at least its position and time; None before a report."""
    readable = _read_column(job, "progress", _COLUMNS["progress"])
    return None if readable is None else job.progress


def override_columns(row: OverrideRow) -> dict[str, Any]:
    """Level, layers and start of an override."""
    return {name: _read_column(row, name, column) for name, column in _OVERRIDE_COLUMNS.items()}


def is_override_readable(row: OverrideRow) -> bool:
    """Return whether this override can be sent to the workers."""
    return override_columns(row) == {name: getattr(row, name) for name in _OVERRIDE_COLUMNS}


def _read_column(row: JobRow | AttemptRow | OverrideRow, name: str, column: _Column) -> Any:
    try:
        return column.type.validate_python(getattr(row, name))
    except ValidationError as error:
        key = getattr(row, "id", None) or getattr(row, "job_id", None)
        if _is_first_report(row.__tablename__, key, name):
            _log.error(
                "unreadable column", table=row.__tablename__, row=key, column=name, error=str(error)
            )
        return column.empty


def _is_first_report(*place: Any) -> bool:
    with _lock:
        is_first = place not in _reported
        if is_first:
            _reported.append(place)
    return is_first
