"""Prometheus metrics at `/metrics`, read from the database at every scrape.

No state is kept between scrapes, so that all API processes export the same values and a restart
loses nothing. Only request times belong to one API process (`request_times.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

from service.api.views import progress_view
from service.domain.elasticity import RECOVERY_CAUSES, RESIZE_CAUSES, ElasticityStats
from service.domain.jobs import Kind, Status
from service.domain.override_status import OverrideState
from service.store.models import JobRow
from service.store.repository import Repository
from service.store.scrape import JobHistory, read_histories
from service.store.stored_documents import stored_elasticity, stored_metrics
from service.store.stored_spec import spec_value
from workers.contract import Progress

MAX_GROUPS = 20
"""Maximum number of layer groups per job; the REST API has the values by layer."""
_OTHER = "other"
_REGIMES = ("critical", "stable")
_LEVELS = ("none", "half", "low", "high", _OTHER)
_LOOK_BACK = 64
"""Epochs and decisions that a scrape reads per job; older comparisons are not exported."""


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Family:
    """Type and help text of one metric."""

    kind: Literal["gauge", "counter"]
    help: str


FAMILIES: Mapping[str, _Family] = {
    "accordion_job_info": _Family(
        "gauge", "Name, kind (job or guest), task, method and policy of a job; always 1."
    ),
    "accordion_job_state": _Family("gauge", "1 for the current state of a job, 0 for all others."),
    "accordion_job_epochs": _Family("gauge", "Finished and planned epochs of a job."),
    "accordion_job_steps": _Family(
        "gauge",
        "Finished and planned optimizer steps of a job; the plan assumes the present batch.",
    ),
    "accordion_job_loss": _Family(
        "gauge", "Newest training and evaluation loss; NaN if it was not finite."
    ),
    "accordion_job_metric": _Family("gauge", "Newest evaluation metrics, such as accuracy."),
    "accordion_job_learning_rate": _Family("gauge", "Current learning rate."),
    "accordion_job_samples_per_second": _Family(
        "gauge", "Training samples per second over all workers."
    ),
    "accordion_job_workers_wanted": _Family(
        "gauge", "Workers that the scheduler allocated to the job."
    ),
    "accordion_job_workers_allowed": _Family(
        "gauge", "Minimum and maximum number of workers that users allow."
    ),
    "accordion_job_workers_alive": _Family("gauge", "Workers in training now."),
    "accordion_job_restarts_total": _Family("counter", "Worker groups that failed."),
    "accordion_job_resizes_total": _Family(
        "counter", "Planned changes of the number of workers, by cause."
    ),
    "accordion_job_recoveries_total": _Family(
        "counter", "Worker groups that replaced a failed one, by cause."
    ),
    "accordion_job_lost_seconds_total": _Family(
        "counter", "Seconds without a step during changes of worker group."
    ),
    "accordion_job_rolled_back_steps_total": _Family(
        "counter", "Steps repeated because they followed the newest checkpoint."
    ),
    "accordion_job_bytes_total": _Family(
        "counter",
        "Bytes of one worker: payload (sent), wire (estimate at the network interface), dense and"
        " fp16 (payload without compression, in fp32 and fp16).",
    ),
    "accordion_step_phase_seconds_total": _Family(
        "counter", "Seconds that rank 0 spent in each phase of training."
    ),
    "accordion_step_compute_seconds": _Family(
        "gauge", "Mean seconds per step that each rank loads data and computes, over 10 s."
    ),
    "accordion_exchange_wait_seconds": _Family(
        "gauge", "Seconds for which a step waited for exchanges, measured before a decision."
    ),
    "accordion_exchange_wait_predicted_seconds": _Family(
        "gauge", "Seconds for which a step would wait for exchanges at each level, as predicted."
    ),
    "accordion_job_decisions_total": _Family("counter", "Decisions that all workers applied."),
    "accordion_job_overrides": _Family("gauge", "Overrides, by state."),
    "accordion_job_checkpoint_timestamp_seconds": _Family(
        "gauge", "Time at which the newest checkpoint was saved."
    ),
    "accordion_job_checkpoint_size_bytes": _Family("gauge", "Size of the newest checkpoint."),
    "accordion_job_checkpoint_duration_seconds": _Family(
        "gauge", "Seconds that saving the newest checkpoint took."
    ),
    "accordion_job_checkpoint_blocked_seconds": _Family(
        "gauge", "Seconds for which the newest checkpoint blocked training."
    ),
    "accordion_job_progress_timestamp_seconds": _Family(
        "gauge", "Time of the newest progress report."
    ),
    "accordion_job_threshold_ratio": _Family(
        "gauge", "Relative change of the gradient norm from which a layer is critical."
    ),
    "accordion_group_regime": _Family(
        "gauge", "1 for the regime of a layer group, which is critical if any of its layers is."
    ),
    "accordion_group_level": _Family(
        "gauge", "1 for the lightest compression level in force in a layer group."
    ),
    "accordion_group_change_ratio": _Family(
        "gauge", "Relative change of the gradient norm at the newest comparison."
    ),
    "accordion_group_gradient_norm": _Family(
        "gauge", "Norm of the mean gradient over the newest complete window."
    ),
    "accordion_jobs": _Family(
        "gauge", "Jobs by state, including ended ones, without guest runs (accordion_guests)."
    ),
    "accordion_guests": _Family("gauge", "Guest runs by state, including ended ones."),
    "accordion_queue_jobs": _Family("gauge", "Queued jobs."),
    "accordion_scheduler_heartbeat_timestamp_seconds": _Family(
        "gauge", "Time at which the scheduler last renewed its lease."
    ),
    "accordion_cluster_reachable": _Family(
        "gauge", "1 if the scheduler reaches the Ray cluster, otherwise 0."
    ),
}


class _Sample(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    labels: Mapping[str, str]


def metrics_response(
    repository: Repository,
    now: datetime,
    *,
    retention_s: float = 300.0,
    extra: Sequence[Collector] = (),
) -> tuple[bytes, str]:
    """Return the exposition and its content type; `extra` are collectors of this process.

    `retention_s` is how long an ended job is still exported.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (StoreCollector(repository, now.timestamp() - retention_s), *extra):
        registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class StoreCollector(Collector):
    """Collects the metrics in the database, without jobs that ended before `since`."""

    def __init__(self, repository: Repository, since: float) -> None:
        self._repository = repository
        self._since = since

    def describe(self) -> Iterable[Metric]:
        """Yield the names of the metrics without reading the database."""
        return [_build_family(name) for name in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each name that has samples."""
        samples = defaultdict(list)
        for sample in self._collect_samples():
            samples[sample.name].append(sample)
        for name in FAMILIES:
            if name in samples:
                yield _build_family(name, samples[name])

    def _collect_samples(self) -> Iterator[_Sample]:
        yield from _service_samples(self._repository)
        rows = self._repository.shown(self._since)
        histories = read_histories(
            self._repository.database, [row.id for row in rows], look_back=_LOOK_BACK
        )
        for row in rows:
            yield from _samples_of(row, histories.get(row.id, JobHistory()))


def _samples_of(row: JobRow, history: JobHistory) -> Sequence[_Sample]:
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


def _build_family(name: str, samples: Sequence[_Sample] = ()) -> Metric:
    family = FAMILIES[name]
    # prometheus_client appends `_total` to the name of a counter.
    metric = Metric(name.removesuffix("_total"), family.help, family.kind)
    for sample in samples:
        metric.add_sample(name, dict(sample.labels), sample.value)
    return metric


def _service_samples(repository: Repository) -> Iterator[_Sample]:
    counts = repository.count_by_status()
    for status, count in counts.items():
        yield _Sample("accordion_jobs", count, {"state": status})
    for status, count in repository.count_by_status(Kind.GUEST).items():
        yield _Sample("accordion_guests", count, {"state": status})
    yield _Sample("accordion_queue_jobs", counts[Status.QUEUED], {})
    heartbeat = repository.heartbeat()
    if heartbeat is not None:
        yield _Sample("accordion_scheduler_heartbeat_timestamp_seconds", heartbeat, {})
    cluster = repository.cluster()
    yield _Sample(
        "accordion_cluster_reachable", float(cluster is not None and cluster.reachable), {}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Inputs of the samples of one job."""

    row: JobRow
    progress: Progress | None
    history: JobHistory


def _job_samples(facts: _Facts) -> Iterator[_Sample]:
    for name, value, labels in (
        *_identity_samples(facts),
        *_training_samples(facts),
        *_elasticity_samples(facts),
        *_group_samples(facts),
    ):
        yield _Sample(name, float(value), {"job_id": facts.row.id, **labels})


def _identity_samples(facts: _Facts) -> Iterator[_Sample]:
    row = facts.row
    places = {"task": "task.name", "method": "compression.method", "policy": "policy.name"}
    named = {label: spec_value(row, place, "unknown") for label, place in places.items()}
    yield _Sample("accordion_job_info", 1, {"name": row.name, "kind": row.kind, **named})
    for status in Status:
        yield _Sample("accordion_job_state", float(row.status == status), {"state": status})
    threshold = spec_value(row, "policy.threshold", math.nan)
    if row.kind == Kind.JOB or not math.isnan(threshold):
        yield _Sample("accordion_job_threshold_ratio", threshold, {})


def _training_samples(facts: _Facts) -> Iterator[_Sample]:
    progress = facts.progress
    yield from _extent_samples(facts)
    for metric, value in stored_metrics(facts.row).items():
        if metric == "loss":
            yield _Sample("accordion_job_loss", value, {"kind": "evaluation"})
        else:
            yield _Sample("accordion_job_metric", value, {"kind": metric})
    if progress is None:
        return
    yield _Sample(
        "accordion_job_loss",
        math.nan if progress.loss is None else progress.loss,
        {"kind": "training"},
    )
    yield _Sample("accordion_job_learning_rate", progress.lr, {})
    if progress.global_batch or facts.row.kind == Kind.JOB:
        yield _Sample("accordion_job_samples_per_second", progress.samples_per_s, {})
    yield _Sample("accordion_job_progress_timestamp_seconds", progress.time, {})
    for kind, count in progress.bytes.model_dump().items():
        yield _Sample("accordion_job_bytes_total", count, {"kind": kind})
    yield from _time_samples(progress)


def _time_samples(progress: Progress) -> Iterator[_Sample]:
    for phase, seconds in progress.seconds_by_phase.items():
        yield _Sample("accordion_step_phase_seconds_total", seconds, {"phase": phase})
    for rank, seconds in enumerate(progress.compute_s_by_rank):
        yield _Sample("accordion_step_compute_seconds", seconds, {"rank": str(rank)})
    if progress.exchange_wait_s is not None:
        yield _Sample("accordion_exchange_wait_seconds", progress.exchange_wait_s, {})
    for level, seconds in progress.wait_s_by_level.items():
        yield _Sample("accordion_exchange_wait_predicted_seconds", seconds, {"level": level})


def _extent_samples(facts: _Facts) -> Iterator[_Sample]:
    """Yield finished and planned epochs and steps; the plan of a guest run is unknown."""
    finished = facts.history.epochs[0].epoch + 1 if facts.history.epochs else 0
    yield _Sample("accordion_job_epochs", finished, {"state": "finished"})
    if facts.row.kind == Kind.JOB:
        planned = spec_value(facts.row, "training.epochs", math.nan)
        yield _Sample("accordion_job_epochs", planned, {"state": "planned"})
    progress = progress_view(facts.row)
    if progress is not None:
        yield _Sample("accordion_job_steps", progress.step, {"state": "finished"})
    if progress is not None and progress.steps is not None:
        yield _Sample("accordion_job_steps", progress.steps, {"state": "planned"})


def _elasticity_samples(facts: _Facts) -> Iterator[_Sample]:
    yield _Sample("accordion_job_workers_alive", facts.row.world_size, {})
    if facts.row.kind == Kind.JOB:
        yield _Sample("accordion_job_workers_wanted", facts.row.workers, {})
        yield _Sample("accordion_job_workers_allowed", facts.row.min_workers, {"limit": "min"})
        yield _Sample("accordion_job_workers_allowed", facts.row.max_workers, {"limit": "max"})
    yield _Sample("accordion_job_restarts_total", facts.row.failures, {})
    yield from _change_samples(stored_elasticity(facts.row))
    yield _Sample("accordion_job_decisions_total", facts.history.num_decisions, {})
    for state in get_args(OverrideState):
        yield _Sample(
            "accordion_job_overrides",
            facts.history.overrides_by_state.get(state, 0),
            {"state": state},
        )
    if facts.history.checkpoint is not None:
        yield _Sample(
            "accordion_job_checkpoint_timestamp_seconds", facts.history.checkpoint.time, {}
        )
        yield _Sample(
            "accordion_job_checkpoint_size_bytes", facts.history.checkpoint.size_bytes, {}
        )
        yield _Sample(
            "accordion_job_checkpoint_duration_seconds", facts.history.checkpoint.seconds, {}
        )
        yield _Sample(
            "accordion_job_checkpoint_blocked_seconds", facts.history.checkpoint.blocked_s, {}
        )


def _change_samples(tally: ElasticityStats) -> Iterator[_Sample]:
    # Every cause is exported from the start: a counter that appears with an event has no rate.
    for cause in (*RESIZE_CAUSES, *(tally.resizes.keys() - RESIZE_CAUSES)):
        yield _Sample("accordion_job_resizes_total", tally.resizes.get(cause, 0), {"cause": cause})
    for cause in (*RECOVERY_CAUSES, *(tally.recoveries.keys() - RECOVERY_CAUSES)):
        yield _Sample(
            "accordion_job_recoveries_total", tally.recoveries.get(cause, 0), {"cause": cause}
        )
    yield _Sample("accordion_job_lost_seconds_total", tally.seconds_lost, {})
    yield _Sample("accordion_job_rolled_back_steps_total", tally.steps_rolled_back, {})


def _group_samples(facts: _Facts) -> Iterator[_Sample]:
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
            yield _Sample(
                "accordion_group_regime",
                (group in critical) == (regime == "critical"),
                _group_labels(group, state=regime),
            )
        for level in _LEVELS:
            yield _Sample(
                "accordion_group_level",
                levels.get(group) == level,
                _group_labels(group, level=level),
            )
    changes = _first_with_values(row.decision["change_by_layer"] for row in facts.history.decisions)
    for group, values in _by_group(changes, group_by_layer).items():
        yield _Sample("accordion_group_change_ratio", max(values), _group_labels(group))
    norms = _first_with_values(
        row.record["statistic_by_layer"] or {} for row in facts.history.epochs
    )
    for group, values in _by_group(norms, group_by_layer).items():
        yield _Sample("accordion_group_gradient_norm", math.hypot(*values), _group_labels(group))


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
