"""Converts rows of a job into what loggers send."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from accordion_service.domain.jobs.loggers import run_status_of
from accordion_service.domain.jobs.statuses import Status
from accordion_service.loggers.sink import Batch, Point
from accordion_service.store.tables.models import EpochRow
from accordion_service.store.tables.stored_documents import stored_labels
from accordion_service.store.tables.stored_spec import stored_spec
from accordion_service.store.writes.logger_queue import ClaimedTurn
from accordion_service.views.metrics import groups_of
from accordion_workers.records.contract import EpochRecord

MAX_VALUE_LENGTH = 500
"""Maximum characters of a value of the spec; MLflow servers take no longer ones."""
_NOT_SENT = frozenset({"env", "labels", "loggers", "name"})
"""Parts of a spec that are no hyperparameters, or may contain what must not be sent."""
_LEVELS = ("low", "high")
"""Levels with a series of their own; all others share one."""
_TRAINING_PHASES = frozenset({"load", "compute", "encode", "communicate", "optimize", "wait"})


def build_batch(turn: ClaimedTurn) -> Batch:
    """Return what a turn sends."""
    job = turn.job
    labels = {f"label.{name}": value for name, value in stored_labels(job).items()}
    return Batch(
        key=f"{job.id}-{turn.key[1]}",
        name=job.name,
        owner=job.owner or "",
        started_at=job.started_at or job.created_at,
        ended_at=job.ended_at,
        params=flatten_spec(stored_spec(job)),
        tags={"job_id": job.id, "owner": job.owner or "", **labels},
        points=[point for row in turn.epochs for point in _read_point(row)],
        is_first=turn.sent.epoch < 0,
        status=run_status_of(Status(job.status)),
        run_id=turn.run_id,
    )


def flatten_spec(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters of a spec as texts, by their path, such as `training.epochs`."""
    sent = {name: part for name, part in spec.items() if name not in _NOT_SENT}
    return {path: text[:MAX_VALUE_LENGTH] for path, text in _walk(sent, "")}


def _walk(part: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, Mapping):
        for name, inner in part.items():
            yield from _walk(inner, f"{path}.{name}" if path else name)
    elif part is not None:
        yield path, part if isinstance(part, str) else json.dumps(part)


def _read_point(row: EpochRow) -> Iterator[Point]:
    """Return the values of an epoch; nothing if this version cannot read it."""
    try:
        record = EpochRecord.model_validate(row.record)
    except ValueError:
        return
    found = {name: value for name, value in _list_values(record) if math.isfinite(value)}
    yield Point(epoch=row.epoch, time=row.time, values=found)


def _list_values(record: EpochRecord) -> Iterator[tuple[str, float]]:
    if record.loss is not None:
        yield "train/loss", record.loss
    yield "train/learning_rate", record.lr
    yield "train/steps", record.step
    yield "train/skipped_steps", record.skipped_steps
    yield "train/workers", record.world_size
    if record.global_batch:
        yield "train/global_batch", record.global_batch
    if record.local_steps > 1:
        yield "train/local_steps", record.local_steps
    if record.agreement is not None:
        yield "train/agreement", record.agreement
    seconds = sum(
        seconds for name, seconds in record.seconds_by_phase.items() if name in _TRAINING_PHASES
    )
    if record.samples and seconds > 0:
        yield "train/samples_per_s", record.samples / seconds
    for name, value in record.metrics.items():
        yield f"eval/{name}", value
    yield "bytes/sent", record.bytes.wire
    yield "bytes/control", record.bytes.control_wire
    yield "bytes/dense", record.bytes.dense_wire
    if record.bytes.wire:
        yield "bytes/compression_ratio", record.bytes.dense_wire / record.bytes.wire
    yield from _list_shares(record)


def _list_shares(record: EpochRecord) -> Iterator[tuple[str, float]]:
    """Return the share of critical layers, in all and by group of layers, of which there are at
    most 20, and the share of layers at each level.
    """
    regimes, levels = record.regime_by_layer, list(record.level_by_layer.values())
    if levels:
        shares = {level: levels.count(level) / len(levels) for level in _LEVELS}
        yield from ((f"level/{level}", share) for level, share in shares.items())
        yield "level/other", max(0.0, 1.0 - sum(shares.values()))
    if regimes:
        yield "critical/all", list(regimes.values()).count("critical") / len(regimes)
    members = defaultdict(list)
    for layer, group in groups_of(list(regimes)).items():
        members[group].append(regimes[layer])
    for group, inside in sorted(members.items()):
        yield f"critical/groups/{group}", inside.count("critical") / len(inside)


__all__ = ["build_batch", "flatten_spec"]
