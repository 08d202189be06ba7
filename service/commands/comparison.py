"""Compares jobs by their specs and histories; pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from service.domain.metric_goals import (
    MetricValue,
    choose_main_metric,
    find_best,
    find_reached,
    is_smaller_better,
    list_values,
)

if TYPE_CHECKING:
    from service.api.schemas import EpochView, JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHistory:
    """A job and all of its finished epochs, oldest first."""

    job: JobView
    epochs: Sequence[EpochView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedJob:
    """Figures of one job; None where there is no value."""

    id: str
    name: str
    status: str
    epochs: int
    """Number of finished epochs."""
    steps: int
    """Optimizer steps at the end of the newest epoch."""
    loss: float | None
    """Training loss of the newest epoch."""
    final: float | None
    """Metric after the newest epoch that has a value."""
    best: float | None
    """Best value of the metric."""
    best_epoch: int | None
    """First epoch with the best value."""
    reached_epoch: int | None
    """First epoch with a value at least as good as the goal; None if none, or without a goal."""
    reached_s: float | None
    """Seconds of training, on rank 0, until the end of that epoch."""
    step_s: float
    """Mean seconds of a step over all epochs; evaluation, checkpoints and decisions are spread over
    the steps.
    """
    step_s_by_phase: Mapping[str, float]
    """Parts of `step_s`."""
    sent_bytes: int
    """Bytes that one worker sent."""
    dense_bytes: int
    """Bytes that it would have sent without compression."""
    ratio: float | None
    """Bytes without compression divided by bytes sent."""
    min_workers: int
    """Fewest workers at the end of an epoch."""
    max_workers: int
    """Most workers at the end of an epoch."""
    duration_s: float | None
    """Seconds from the start of training to the end of the job, or until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Jobs side by side."""

    metric: str | None
    """Compared metric; None if no job was evaluated."""
    reaches: float | None
    """Value of the metric to reach; None if none was given."""
    jobs: Sequence[ComparedJob]
    spec: Mapping[str, Sequence[Any]]
    """Values that differ, by their place in the specs, such as `training.optimizer.lr`; None for a
    job whose spec has none there.
    """


class IncomparableError(ValueError):
    """These jobs cannot be compared; the message says why."""


def compare_jobs(
    histories: Sequence[ComparedHistory],
    *,
    metric: str | None,
    reaches: float | None,
    now: datetime,
) -> Comparison:
    """Compare jobs that have finished epochs.

    Raises:
        IncomparableError: a job is given twice or has no epochs, or no job has the metric.
    """
    _check_jobs(histories)
    chosen = _choose_metric(histories, metric)
    if reaches is not None and chosen is None:
        raise IncomparableError(
            "no epoch was evaluated, so no value can be reached; leave --reaches out"
        )
    return Comparison(
        metric=chosen,
        reaches=reaches,
        jobs=[_compute_figures(one, chosen, reaches, now=now) for one in histories],
        spec=find_differences([one.job.spec for one in histories]),
    )


def find_differences(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values that differ between specs, by dotted path; names of jobs are left out."""
    flat = [dict(_flatten(spec)) for spec in specs]
    places = dict.fromkeys(place for one in flat for place in one if place != "name")
    found = {place: [one.get(place) for one in flat] for place in places}
    return {
        place: values
        for place, values in found.items()
        if len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1
    }


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a document by dotted path; an empty mapping has none."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_jobs(histories: Sequence[ComparedHistory]) -> None:
    counts = Counter(one.job.id for one in histories)
    repeated = [one.job for one in histories if counts[one.job.id] > 1]
    if repeated:
        raise IncomparableError(
            f"job {repeated[0].id} ({repeated[0].name}) is given {counts[repeated[0].id]} times;"
            " give different jobs"
        )
    for job in (one.job for one in histories if not one.epochs):
        then = "leave it out" if job.ended_at else "wait for its first epoch, or leave it out"
        raise IncomparableError(
            f"job {job.id} ({job.name}) is {job.status} and has finished no epoch; {then}"
        )


def _choose_metric(histories: Sequence[ComparedHistory], metric: str | None) -> str | None:
    by_job = [{name: None for row in one.epochs for name in row.metrics} for one in histories]
    known = list(dict.fromkeys(name for names in by_job for name in names))
    if metric is not None:
        if metric in known:
            return metric
        has = ", ".join(sorted(known)) or "none"
        raise IncomparableError(
            f"metric is {metric!r}, and the epochs of these jobs have {has}; give one of them"
        )
    common = [name for name in known if all(name in names for names in by_job)]
    return choose_main_metric(common or known, histories[0].job.spec)


def _compute_figures(
    history: ComparedHistory, metric: str | None, reaches: float | None, *, now: datetime
) -> ComparedJob:
    job, epochs = history.job, history.epochs
    values = list_values(metric, ((row.epoch, row.metrics) for row in epochs)) if metric else []
    smaller = metric is not None and is_smaller_better(metric, job.spec)
    best = find_best(values, smaller=smaller)
    reached = None if reaches is None else find_reached(values, reaches, smaller=smaller)
    seconds, steps = _sum_phases(epochs), max(1, epochs[-1].step)
    sent, dense = _sum_bytes(history)
    return ComparedJob(
        id=job.id,
        name=job.name,
        status=job.status.value,
        epochs=len(epochs),
        steps=epochs[-1].step,
        loss=_get_finite(epochs[-1].loss),
        final=values[-1].value if values else None,
        best=best.value if best else None,
        best_epoch=best.epoch if best else None,
        reached_epoch=reached.epoch if reached else None,
        reached_s=_compute_training_s(epochs, reached),
        step_s=sum(seconds.values()) / steps,
        step_s_by_phase={name: value / steps for name, value in seconds.items()},
        sent_bytes=sent,
        dense_bytes=dense,
        ratio=dense / sent if sent else None,
        min_workers=min(row.world_size for row in epochs),
        max_workers=max(row.world_size for row in epochs),
        duration_s=_compute_duration_s(job, now),
    )


def _sum_phases(epochs: Sequence[EpochView]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for row in epochs:
        seconds.update(row.seconds_by_phase)
    return seconds


def _sum_bytes(history: ComparedHistory) -> tuple[int, int]:
    """Return the bytes sent and those without compression; the newest progress counts also the
    steps that were rolled back.
    """
    progress = history.job.progress
    if progress is not None and progress.bytes.payload:
        return progress.bytes.payload, progress.bytes.dense
    return (
        sum(row.bytes.payload for row in history.epochs),
        sum(row.bytes.dense for row in history.epochs),
    )


def _compute_training_s(epochs: Sequence[EpochView], reached: MetricValue | None) -> float | None:
    if reached is None:
        return None
    rows = (row for row in epochs if row.epoch <= reached.epoch)
    return sum(sum(row.seconds_by_phase.values()) for row in rows)


def _compute_duration_s(job: JobView, now: datetime) -> float | None:
    if job.started_at is None:
        return None
    return max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())


def _get_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
