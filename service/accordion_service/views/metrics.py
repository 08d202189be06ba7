"""Prometheus metrics at `/metrics`, read from the database at every scrape.

No state is kept between scrapes, so that all API processes export the same values and a restart
loses nothing. What belongs to one API process is in `request_times.py` and
`api/process_metrics.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.domain.jobs.step_making import is_training
from accordion_service.domain.overrides.states import OverrideState
from accordion_service.domain.performance.elasticity import (
    RECOVERY_CAUSES,
    RESIZE_CAUSES,
    ElasticityStats,
)
from accordion_service.errors import DatabaseReplaced
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.database_errors import ErrorKind, classify_error
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.metrics import JobHistory, read_histories
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_documents import stored_elasticity, stored_metrics
from accordion_service.store.tables.stored_spec import spec_value
from accordion_service.views.jobs import progress_view
from accordion_service.views.metric_samples import Family, Sample, build_metric, build_metrics
from accordion_service.views.service_metrics import SERVICE_FAMILIES, service_samples
from accordion_workers.records.contract import Progress

MAX_GROUPS = 20
"""Maximum number of layer groups per job; the REST API has the values by layer."""
_OTHER = "other"
_REGIMES = ("critical", "stable")
_LEVELS = ("none", "half", "low", "high", _OTHER)
_LOOK_BACK = 64
"""Epochs and decisions that a scrape reads per job; older comparisons are not exported."""


_log = structlog.get_logger()


_JOB_FAMILIES: Mapping[str, Family] = {
    "accordion_job_info": Family(
        "gauge", "Name, kind (job or guest), task, method and policy of a job; always 1."
    ),
    "accordion_job_state": Family("gauge", "1 for the current state of a job, 0 for all others."),
    "accordion_job_epochs": Family("gauge", "Finished and planned epochs of a job."),
    "accordion_job_steps": Family(
        "gauge",
        "Finished and planned optimizer steps of a job; the plan assumes the present batch.",
    ),
    "accordion_job_loss": Family(
        "gauge", "Newest training and evaluation loss; NaN if it was not finite."
    ),
    "accordion_job_metric": Family("gauge", "Newest evaluation metrics, such as accuracy."),
    "accordion_job_learning_rate": Family("gauge", "Current learning rate."),
    "accordion_job_samples_per_second": Family(
        "gauge", "Training samples per second over all workers; 0 while the job does not train."
    ),
    "accordion_job_workers_wanted": Family(
        "gauge", "Workers that the scheduler allocated to the job."
    ),
    "accordion_job_workers_allowed": Family(
        "gauge", "Minimum and maximum number of workers that users allow."
    ),
    "accordion_job_workers_alive": Family("gauge", "Workers in training now."),
    "accordion_job_restarts_total": Family("counter", "Worker groups that failed."),
    "accordion_job_resizes_total": Family(
        "counter", "Planned changes of the number of workers, by cause."
    ),
    "accordion_job_recoveries_total": Family(
        "counter", "Worker groups that replaced a failed one, by cause."
    ),
    "accordion_job_lost_seconds_total": Family(
        "counter", "Seconds without a step during changes of worker group."
    ),
    "accordion_job_rolled_back_steps_total": Family(
        "counter", "Steps repeated because they followed the newest checkpoint."
    ),
    "accordion_job_bytes_total": Family(
        "counter",
        "Bytes of one worker. On the wire: wire (sent), control_wire (the part of it that is no"
        " gradient), dense_wire (without compression, in fp32). As passed to the network: payload"
        " (sent), dense and fp16 (without compression).",
    ),
    "accordion_step_phase_seconds_total": Family(
        "counter", "Seconds that rank 0 spent in each phase of training."
    ),
    "accordion_step_compute_seconds": Family(
        "gauge", "Mean seconds per step that each rank loads data and computes, over 10 s."
    ),
    "accordion_exchange_wait_seconds": Family(
        "gauge", "Seconds for which a step waited for exchanges, measured before a decision."
    ),
    "accordion_exchange_wait_predicted_seconds": Family(
        "gauge", "Seconds for which a step would wait for exchanges at each level, as predicted."
    ),
    "accordion_job_local_steps": Family(
        "gauge", "Steps that each worker takes between two exchanges; 1 without local steps."
    ),
    "accordion_job_agreement": Family(
        "gauge",
        "Agreement of the workers' gradients over the newest window: 1 if they point the same way,"
        " 0 if only noise is left.",
    ),
    "accordion_job_decisions_total": Family("counter", "Decisions that all workers applied."),
    "accordion_job_overrides": Family("gauge", "Overrides, by state."),
    "accordion_job_checkpoint_timestamp_seconds": Family(
        "gauge", "Time at which the newest checkpoint was saved."
    ),
    "accordion_job_checkpoint_size_bytes": Family("gauge", "Size of the newest checkpoint."),
    "accordion_job_checkpoint_duration_seconds": Family(
        "gauge", "Seconds that saving the newest checkpoint took."
    ),
    "accordion_job_checkpoint_blocked_seconds": Family(
        "gauge", "Seconds for which the newest checkpoint blocked training."
    ),
    "accordion_job_failed_checkpoints_total": Family(
        "counter",
        "Checkpoints of the current worker group that could not be saved, or were skipped because"
        " the previous one was still being written.",
    ),
    "accordion_job_progress_timestamp_seconds": Family(
        "gauge", "Time of the newest progress report."
    ),
    "accordion_job_threshold_ratio": Family(
        "gauge", "Relative change of the gradient norm from which a layer is critical."
    ),
    "accordion_group_regime": Family(
        "gauge", "1 for the regime of a layer group, which is critical if any of its layers is."
    ),
    "accordion_group_level": Family(
        "gauge", "1 for the lightest compression level in force in a layer group."
    ),
    "accordion_group_change_ratio": Family(
        "gauge", "Relative change of the gradient norm at the newest comparison."
    ),
    "accordion_group_gradient_norm": Family(
        "gauge", "Norm of the mean gradient over the newest complete window."
    ),
}
_REACHABLE = "accordion_api_database_reachable"
FAMILIES: Mapping[str, Family] = {
    **_JOB_FAMILIES,
    **SERVICE_FAMILIES,
    _REACHABLE: Family("gauge", "1 if this api process could read the database, otherwise 0."),
}


def metrics_response(
    database: Database,
    now: datetime,
    *,
    retention_s: float = 300.0,
    extra: Sequence[Collector] = (),
) -> tuple[bytes, str]:
    """Return the exposition and its content type; `extra` are collectors of this process.

    `retention_s` is how long an ended job is still exported.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (StoreCollector(database, now.timestamp(), retention_s), *extra):
        registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class StoreCollector(Collector):
    """Collects the metrics in the database, without jobs that ended longer ago than `retention_s`.

    If the database is away, only that is exported: the metrics of the process show why.
    """

    def __init__(self, database: Database, now: float, retention_s: float) -> None:
        self._database = database
        self._now = now
        self._retention_s = retention_s

    def describe(self) -> Iterable[Metric]:
        """Yield the names of the metrics without reading the database."""
        return [build_metric(name, family) for name, family in FAMILIES.items()]

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each name that has samples."""
        return build_metrics(FAMILIES, self._read_samples())

    def _read_samples(self) -> list[Sample]:
        try:
            return [*self._collect_samples(), Sample(_REACHABLE, 1, {})]
        except (DBAPIError, PoolTimeout, DatabaseReplaced) as error:
            if classify_error(error) in {None, ErrorKind.OTHER}:
                raise
            _log.error("metrics without the database", error=str(error))
            return [Sample(_REACHABLE, 0, {})]

    def _collect_samples(self) -> Iterator[Sample]:
        yield from service_samples(self._database, self._now)
        rows = JobReads(self._database).shown(self._now - self._retention_s)
        histories = read_histories(self._database, [row.id for row in rows], look_back=_LOOK_BACK)
        for row in rows:
            yield from _samples_of(row, histories.get(row.id, JobHistory()))


def _samples_of(row: JobRow, history: JobHistory) -> Sequence[Sample]:
    """Return the samples of one job; none if this version cannot read its rows, so that other jobs
    are still exported.
    """
    try:
        return list(_job_samples(_Facts(row=row, progress=_progress_of(row), history=history)))
    except (ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.error("a job is left out of the metrics", job_id=row.id, error=str(error))
        return ()


def _progress_of(row: JobRow) -> Progress | None:
    """Read the progress of a job; None before the first report, or if it is unreadable."""
    try:
        return Progress.model_validate(row.progress) if row.progress else None
    except ValidationError as error:
        _log.error("unreadable column", job_id=row.id, column="progress", error=str(error))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Inputs of the samples of one job."""

    row: JobRow
    progress: Progress | None
    history: JobHistory


def _job_samples(facts: _Facts) -> Iterator[Sample]:
    for sample in (
        *_identity_samples(facts),
        *_training_samples(facts),
        *_elasticity_samples(facts),
        *_group_samples(facts),
    ):
        labels = {"job_id": facts.row.id, **sample.labels}
        yield Sample(sample.name, float(sample.value), labels)


def _identity_samples(facts: _Facts) -> Iterator[Sample]:
    row = facts.row
    places = {"task": "task.name", "method": "compression.method", "policy": "policy.name"}
    named = {label: spec_value(row, place, "unknown") for label, place in places.items()}
    yield Sample("accordion_job_info", 1, {"name": row.name, "kind": row.kind, **named})
    for status in Status:
        yield Sample("accordion_job_state", float(row.status == status), {"state": status})
    threshold = spec_value(row, "policy.threshold", math.nan)
    if row.kind == Kind.JOB or not math.isnan(threshold):
        yield Sample("accordion_job_threshold_ratio", threshold, {})


def _training_samples(facts: _Facts) -> Iterator[Sample]:
    progress = facts.progress
    yield from _extent_samples(facts)
    for metric, value in stored_metrics(facts.row).items():
        if metric == "loss":
            yield Sample("accordion_job_loss", value, {"kind": "evaluation"})
        else:
            yield Sample("accordion_job_metric", value, {"kind": metric})
    if progress is None:
        return
    yield Sample(
        "accordion_job_loss",
        math.nan if progress.loss is None else progress.loss,
        {"kind": "training"},
    )
    yield Sample("accordion_job_learning_rate", progress.lr, {})
    if progress.global_batch or facts.row.kind == Kind.JOB:
        speed = progress.samples_per_s * is_training(facts.row.status, facts.row.reason)
        yield Sample("accordion_job_samples_per_second", speed, {})
    if facts.row.kind == Kind.JOB:
        yield Sample("accordion_job_failed_checkpoints_total", progress.failed_checkpoints, {})
    yield Sample("accordion_job_progress_timestamp_seconds", progress.time, {})
    for kind, count in progress.bytes.totals().items():
        yield Sample("accordion_job_bytes_total", count, {"kind": kind})
    yield from _time_samples(progress)


def _time_samples(progress: Progress) -> Iterator[Sample]:
    for phase, seconds in progress.seconds_by_phase.items():
        yield Sample("accordion_step_phase_seconds_total", seconds, {"phase": phase})
    for rank, seconds in enumerate(progress.compute_s_by_rank):
        yield Sample("accordion_step_compute_seconds", seconds, {"rank": str(rank)})
    if progress.exchange_wait_s is not None:
        yield Sample("accordion_exchange_wait_seconds", progress.exchange_wait_s, {})
    for level, seconds in progress.wait_s_by_level.items():
        yield Sample("accordion_exchange_wait_predicted_seconds", seconds, {"level": level})


def _extent_samples(facts: _Facts) -> Iterator[Sample]:
    """Yield finished and planned epochs and steps; the plan of a guest run is unknown."""
    finished = facts.history.epochs[0].epoch + 1 if facts.history.epochs else 0
    yield Sample("accordion_job_epochs", finished, {"state": "finished"})
    if facts.row.kind == Kind.JOB:
        planned = spec_value(facts.row, "training.epochs", math.nan)
        yield Sample("accordion_job_epochs", planned, {"state": "planned"})
    progress = progress_view(facts.row)
    if progress is not None:
        yield Sample("accordion_job_steps", progress.step, {"state": "finished"})
    if progress is not None and progress.steps is not None:
        yield Sample("accordion_job_steps", progress.steps, {"state": "planned"})


def _elasticity_samples(facts: _Facts) -> Iterator[Sample]:
    yield Sample("accordion_job_workers_alive", facts.row.world_size, {})
    if facts.row.kind == Kind.JOB:
        yield Sample("accordion_job_workers_wanted", facts.row.workers, {})
        yield Sample("accordion_job_workers_allowed", facts.row.min_workers, {"limit": "min"})
        yield Sample("accordion_job_workers_allowed", facts.row.max_workers, {"limit": "max"})
    yield Sample("accordion_job_restarts_total", facts.row.failures, {})
    yield from _change_samples(stored_elasticity(facts.row))
    yield Sample("accordion_job_decisions_total", facts.history.num_decisions, {})
    for row in facts.history.decisions[:1]:  # an older version stored them without it
        yield Sample("accordion_job_local_steps", row.decision.get("local_steps", 1), {})
    for epoch in facts.history.epochs[:1]:
        if (agreement := epoch.record.get("agreement")) is not None:
            yield Sample("accordion_job_agreement", agreement, {})
    for state in get_args(OverrideState):
        yield Sample(
            "accordion_job_overrides",
            facts.history.overrides_by_state.get(state, 0),
            {"state": state},
        )
    if facts.history.checkpoint is not None:
        yield Sample(
            "accordion_job_checkpoint_timestamp_seconds", facts.history.checkpoint.time, {}
        )
        yield Sample("accordion_job_checkpoint_size_bytes", facts.history.checkpoint.size_bytes, {})
        yield Sample(
            "accordion_job_checkpoint_duration_seconds", facts.history.checkpoint.seconds, {}
        )
        yield Sample(
            "accordion_job_checkpoint_blocked_seconds", facts.history.checkpoint.blocked_s, {}
        )


def _change_samples(tally: ElasticityStats) -> Iterator[Sample]:
    # Every cause is exported from the start: a counter that appears with an event has no rate.
    for cause in (*RESIZE_CAUSES, *(tally.resizes.keys() - RESIZE_CAUSES)):
        yield Sample("accordion_job_resizes_total", tally.resizes.get(cause, 0), {"cause": cause})
    for cause in (*RECOVERY_CAUSES, *(tally.recoveries.keys() - RECOVERY_CAUSES)):
        yield Sample(
            "accordion_job_recoveries_total", tally.recoveries.get(cause, 0), {"cause": cause}
        )
    yield Sample("accordion_job_lost_seconds_total", tally.seconds_lost, {})
    yield Sample("accordion_job_rolled_back_steps_total", tally.steps_rolled_back, {})


def _group_samples(facts: _Facts) -> Iterator[Sample]:
    if not facts.history.decisions:
        return
    decision = facts.history.decisions[0].decision
    group_by_layer = groups_of(list(decision["regime_by_layer"]))
    critical = {
        group_by_layer[layer]
        for layer, regime in decision["regime_by_layer"].items()
        if regime == "critical"
    }
    levels = _find_lightest(decision["level_by_layer"], group_by_layer)
    for group in sorted(set(group_by_layer.values())):
        for regime in _REGIMES:
            yield Sample(
                "accordion_group_regime",
                (group in critical) == (regime == "critical"),
                _group_labels(group, state=regime),
            )
        for level in _LEVELS:
            yield Sample(
                "accordion_group_level",
                levels.get(group) == level,
                _group_labels(group, level=level),
            )
    changes = _first_with_values(row.decision["change_by_layer"] for row in facts.history.decisions)
    for group, values in _by_group(changes, group_by_layer).items():
        yield Sample("accordion_group_change_ratio", max(values), _group_labels(group))
    norms = _first_with_values(
        row.record["statistic_by_layer"] or {} for row in facts.history.epochs
    )
    for group, values in _by_group(norms, group_by_layer).items():
        yield Sample("accordion_group_gradient_norm", math.hypot(*values), _group_labels(group))


def _group_labels(group: str, **labels: str) -> dict[str, str]:
    return {"group": group, **labels}


def groups_of(layers: Sequence[str]) -> dict[str, str]:
    """Return the group of each layer: its module, or the longest prefix of the module's path that
    gives at most `MAX_GROUPS` groups.
    """
    paths = {layer: layer.split(".")[:-1] or [layer] for layer in layers}
    depths = range(max((len(path) for path in paths.values()), default=1), 0, -1)
    for depth in depths:
        groups = {layer: ".".join(path[:depth]) for layer, path in paths.items()}
        if len(set(groups.values())) <= MAX_GROUPS:
            return groups
    kept = set(list(dict.fromkeys(groups.values()))[: MAX_GROUPS - 1])
    return {layer: group if group in kept else _OTHER for layer, group in groups.items()}


def _find_lightest(
    level_by_layer: Mapping[str, Any], group_by_layer: Mapping[str, str]
) -> dict[str, str]:
    order = {level: place for place, level in enumerate(_LEVELS)}
    lightest: dict[str, str] = {}
    for layer, level in level_by_layer.items():
        name = level["name"] if level["name"] in order else _OTHER
        group = group_by_layer[layer]
        lightest[group] = min(lightest.get(group, name), name, key=order.__getitem__)
    return lightest


def _first_with_values(rows: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the values of the newest row that has any; decisions inside a window have none."""
    found = ({layer: value for layer, value in row.items() if value is not None} for row in rows)
    return next(filter(None, found), {})


def _by_group(
    values: Mapping[str, float], group_by_layer: Mapping[str, str]
) -> dict[str, list[float]]:
    grouped: dict[str, list[float]] = defaultdict(list)
    for layer, value in values.items():
        grouped[group_by_layer.get(layer, _OTHER)].append(value)
    return grouped
