"""Compares jobs by their specs and histories; pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from accordion_client.commands.compared_history import (
    ComparedEpoch,
    ComparedHistory,
    ComparedSource,
)
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.domain.performance.metric_goals import (
    MetricValue,
    choose_main_metric,
    find_best,
    find_reached,
    get_objective_mode,
    is_smaller_better,
    list_values,
)
from accordion_service.schemas.format import is_accuracy
from accordion_workers.spec.public_records import Bytes

_ENDED = ("SUCCEEDED", "FAILED")
"""States of simulations that go on with no epoch; when they ended is not known."""


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
    """Seconds of training, on rank 0, until the end of that epoch; None if an epoch before it is
    missing.
    """
    step_s: float | None
    """Mean seconds of a step over all epochs whose previous one is known; evaluation, checkpoints
    and decisions are spread over the steps. None without such an epoch.
    """
    step_s_by_phase: Mapping[str, float]
    """Parts of `step_s`; empty if it is None."""
    sent_bytes: int
    """Bytes that one worker sent on the wire."""
    sent_bytes_by_method: Mapping[str, int]
    """Parts of `sent_bytes`: of gradients by method, of changes by local steps as `METHOD (local
    steps)`, and `(control)`.
    """
    dense_bytes: int
    """Bytes that it would have sent there without compression."""
    ratio: float | None
    """Bytes without compression divided by bytes sent."""
    fewest_workers: int
    """Fewest workers at the end of an epoch."""
    most_workers: int
    """Most workers at the end of an epoch."""
    duration_s: float | None
    """Seconds from the start of training to the end of the job, or until now, pauses included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Jobs side by side."""

    metric: str | None
    """Compared metric; None if no job was evaluated."""
    smaller_is_better: bool | None
    """Whether a smaller value of the metric is better: as an objective of the jobs says, otherwise
    by the name of the metric; None if there is no metric.
    """
    reaches: float | None
    """Value of the metric to reach; None if none was given."""
    jobs: Sequence[ComparedJob]
    spec: Mapping[str, Sequence[Any]]
    """Values that differ, by their place in the specs, such as `training.optimizer.lr`; None for a
    job whose spec has none there. Priority and labels are the present ones.
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
        IncomparableError: a job is given twice or has no epochs, no job has the metric, or the jobs
            disagree on which value of it is better, or only `reaches` is in percent.
    """
    check_given_once(histories)
    _check_epochs(histories)
    chosen = choose_metric(histories, metric)
    if reaches is not None and chosen is None:
        raise IncomparableError(
            "no epoch was evaluated, so no value can be reached; leave --reaches out"
        )
    if reaches is not None and reaches > 1 and chosen is not None and is_accuracy(chosen):
        _check_percent(chosen, histories, reaches)
    smaller = None if chosen is None else _decide_direction(chosen, histories)
    return Comparison(
        metric=chosen,
        smaller_is_better=smaller,
        reaches=reaches,
        jobs=[
            _compute_figures(one, _Goal(metric=chosen, smaller=bool(smaller), reaches=reaches), now)
            for one in histories
        ],
        spec=find_differences([get_present_spec(one.job) for one in histories]),
    )


def _check_percent(metric: str, histories: Sequence[ComparedHistory], reaches: float) -> None:
    """Check that an accuracy above 1 is not asked of jobs that report fractions."""
    values = [row.metrics.get(metric, 0.0) for one in histories for row in one.epochs]
    if max(values) <= 1:
        raise IncomparableError(
            f"--reaches is {reaches:g}, and these jobs report {metric} as a fraction of 1; give"
            f" {reaches / 100:g} for {reaches:g} %"
        )


def get_present_spec(job: ComparedSource) -> dict[str, Any]:
    """Return the spec of a job, with the priority and the labels that it has now."""
    return {**job.spec, "priority": job.priority, "labels": job.labels}


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


def check_given_once(histories: Sequence[ComparedHistory]) -> None:
    """Check that no job is given twice.

    Raises:
        IncomparableError: one is.
    """
    counts = Counter(one.job.id for one in histories)
    repeated = [one.job for one in histories if counts[one.job.id] > 1]
    if repeated:
        raise IncomparableError(
            f"job {repeated[0].id} ({repeated[0].name}) is given {counts[repeated[0].id]} times;"
            " give different jobs"
        )


def _check_epochs(histories: Sequence[ComparedHistory]) -> None:
    for job in (one.job for one in histories if not one.epochs):
        is_over = job.ended_at or job.status.value in _ENDED
        then = "leave it out" if is_over else "wait for its first epoch, or leave it out"
        raise IncomparableError(
            f"job {job.id} ({job.name}) is {job.status} and has finished no epoch; {then}"
        )


def choose_metric(histories: Sequence[ComparedHistory], metric: str | None) -> str | None:
    """Return the metric, or without one that which tells most about the first job, of those that
    all jobs have if there are any; None if no job was evaluated.

    Raises:
        IncomparableError: no job has the metric.
    """
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


def _decide_direction(metric: str, histories: Sequence[ComparedHistory]) -> bool:
    """Return whether a smaller value is better, for all jobs alike."""
    found = {get_objective_mode(metric, one.job.spec): one.job for one in histories[::-1]}
    if {"min", "max"} <= found.keys():
        raise IncomparableError(
            f"the objectives of jobs {found['min'].id} ({found['min'].name}) and {found['max'].id}"
            f" ({found['max'].name}) say that a smaller and a larger {metric!r} is better; give"
            " another metric, or leave one of them out"
        )
    return is_smaller_better(metric, next(filter(None, found), None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """What the jobs are judged by."""

    metric: str | None
    smaller: bool
    reaches: float | None


def _compute_figures(history: ComparedHistory, goal: _Goal, now: datetime) -> ComparedJob:
    job, epochs, metric = history.job, history.epochs, goal.metric
    values = list_values(metric, ((row.epoch, row.metrics) for row in epochs)) if metric else []
    best = find_best(values, smaller=goal.smaller)
    reached = None
    if goal.reaches is not None:
        reached = find_reached(values, goal.reaches, smaller=goal.smaller)
    step_s_by_phase = _compute_step_s(history)
    sent = _sum_bytes(history)
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
        step_s=sum(step_s_by_phase.values()) if step_s_by_phase else None,
        step_s_by_phase=step_s_by_phase,
        sent_bytes=sent.wire,
        sent_bytes_by_method=sent.wire_by_method,
        dense_bytes=sent.dense_wire,
        ratio=sent.dense_wire / sent.wire if sent.dense_wire and sent.wire else None,
        fewest_workers=min(row.world_size for row in epochs),
        most_workers=max(row.world_size for row in epochs),
        duration_s=_compute_duration_s(job, now),
    )


def _compute_step_s(history: ComparedHistory) -> dict[str, float]:
    """Return mean seconds of a step by phase, over the epochs whose number of steps is known: those
    that follow another one, and the first epoch of a job, whose steps are counted from 0. A script
    may count on from an earlier run.
    """
    epochs = history.epochs
    pairs = [(before.step, row) for before, row in pairwise(epochs) if _follows(before, row)]
    if history.job.kind is Kind.JOB and epochs[0].epoch == 0:
        pairs.insert(0, (0, epochs[0]))
    seconds: Counter[str] = Counter()
    for _, row in pairs:
        seconds.update(row.seconds_by_phase)
    steps = sum(row.step - begin for begin, row in pairs)
    return {name: value / steps for name, value in seconds.items()} if steps > 0 else {}


def _follows(before: ComparedEpoch, row: ComparedEpoch) -> bool:
    return row.epoch == before.epoch + 1


def _sum_bytes(history: ComparedHistory) -> Bytes:
    """Return a job's bytes; the newest progress counts also the steps that were rolled back."""
    progress = history.job.progress
    if progress is not None and progress.bytes.dense:
        sent: Bytes = progress.bytes
        return sent
    return Bytes.add_up(row.bytes for row in history.epochs)


def _compute_training_s(
    epochs: Sequence[ComparedEpoch], reached: MetricValue | None
) -> float | None:
    if reached is None:
        return None
    rows = [row for row in epochs if row.epoch <= reached.epoch]
    if len(rows) <= reached.epoch:  # epochs are counted from 0
        return None
    return sum(sum(row.seconds_by_phase.values()) for row in rows)


def _compute_duration_s(job: ComparedSource, now: datetime) -> float | None:
    if job.started_at is None:
        return None
    return max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())


def _get_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
