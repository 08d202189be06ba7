"""Converts rows of the store into API responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog
from pydantic import ValidationError

from accordion.base.messages import Decision, LayerInfo, Level, Regime, decision_from_json
from accordion.config import Config
from accordion.policies import POLICIES, check_policy
from accordion_service.domain.capacity.cluster_snapshot import name_of_node
from accordion_service.domain.capacity.waiting_message import format_waiting_message
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.domain.jobs.step_making import is_training
from accordion_service.domain.overrides.transitions import name_requesters
from accordion_service.job_inputs.checkpoints import find_kept
from accordion_service.schemas.cluster import ClusterView, NodeView
from accordion_service.schemas.history import CheckpointView
from accordion_service.schemas.jobs import (
    AttemptView,
    BatchSchedule,
    DecisionView,
    EpochView,
    EventView,
    JobView,
    LayerSchedule,
    ProgressView,
    ScheduleView,
)
from accordion_service.schemas.overrides import OverrideView
from accordion_service.store.tables.models import (
    AckRow,
    AttemptRow,
    CheckpointRow,
    ClusterRow,
    DecisionRow,
    EpochRow,
    EventRow,
    JobRow,
    OverrideRow,
)
from accordion_service.store.tables.stored_documents import (
    layer_names,
    override_columns,
    stored_elasticity,
    stored_labels,
    stored_layers,
    stored_metrics,
    stored_ray_run,
    stored_reports,
)
from accordion_service.store.tables.stored_spec import (
    UnreadableSpec,
    resource_request,
    spec_of,
    spec_value,
    stored_spec,
)
from accordion_workers.records.contract import JobSpec

_UNKNOWN_LEVEL = Level(name="unknown", method="unknown")
"""Placeholder if neither a decision nor the spec determines the level."""
_log = structlog.get_logger()


def job_view(row: JobRow, first_without_capacity: str | None = None) -> JobView:
    """Build the view of one job. A column that this version cannot read is shown empty.

    `first_without_capacity` is the id of the first queued job without capacity; it blocks the
    queue.
    """
    documents = {
        "labels": stored_labels(row),
        "metrics": stored_metrics(row),
        "tally": stored_elasticity(row),
    }
    documents |= {**stored_reports(row), "ray_run": stored_ray_run(row)}
    plain = {
        name: getattr(row, name)
        for name in JobView.model_fields
        if name not in {"progress", *documents}
    }
    return JobView.model_validate(
        {
            **plain,
            **documents,
            "spec": stored_spec(row),
            "progress": progress_view(row),
            "message": format_waiting_message(row.message, first_without_capacity),
        }
    )


def progress_view(row: JobRow) -> ProgressView | None:
    """Build the progress of a job; None before the first report, or if the stored progress is
    unreadable.
    """
    if row.progress is None:
        return None
    try:
        return _progress_view(row, row.progress)
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        _log.error("unreadable column", job_id=row.id, column="progress", error=str(error))
        return None


def _progress_view(row: JobRow, now: dict[str, Any]) -> ProgressView:
    steps = now["steps"] or now["steps_per_epoch"] * now["epochs"] or None
    default_batch = 0 if row.kind == Kind.GUEST else 1
    batch = now["global_batch"] or spec_value(row, "training.global_batch", default_batch)
    trains = is_training(row.status, row.reason)
    # Means over 10 s and an epoch: the newest speed may be that of a few steps or an evaluation.
    step_s = trains and sum(now["step_s_by_phase"].values())
    speed = batch / step_s if step_s else now["samples_per_s"] * trains
    return ProgressView.model_validate(
        {
            **{name: now[name] for name in ("epoch", "step", "loss", "lr")},
            "bytes": now["bytes"],
            "epochs": now["epochs"] or None,
            "samples_per_s": speed if batch else None,
            "compute_s_by_rank": now["compute_s_by_rank"],
            "micro_batches_by_rank": now["micro_batches_by_rank"],
            "steps": steps,
            "eta_s": max(0, steps - now["step"]) * step_s if steps and step_s else None,
            "failed_checkpoints_in_a_row": now.get("failed_checkpoints_in_a_row", 0),
            "updated_at": now["time"],
        }
    )


def attempt_view(row: AttemptRow) -> AttemptView:
    """Build the view of one attempt."""
    plain = {name: getattr(row, name) for name in AttemptView.model_fields if name != "tally"}
    return AttemptView.model_validate({**plain, "tally": stored_elasticity(row)})


def checkpoint_views(job: JobRow, rows: Sequence[CheckpointRow]) -> list[CheckpointView]:
    """Build the views of all checkpoints of a job, and say which are still on its storage."""
    keep = int(spec_value(job, "checkpoint.keep", 2))
    existing = [row for row in rows if row.removed_at is None]
    kept = find_kept(existing, keep=keep, mode=spec_value(job, "objective.mode", ""))
    views = [CheckpointView.model_validate(row) for row in rows]
    for view in views:
        view.kept = view.name in kept.names
        view.newest, view.best = view.name == kept.newest, view.name == kept.best
    return views


def epoch_views(rows: Iterable[EpochRow]) -> list[EpochView]:
    """Build the views of finished epochs, without unreadable ones."""
    return [view for view in map(_epoch_view, rows) if view is not None]


def _epoch_view(row: EpochRow) -> EpochView | None:
    try:
        return EpochView.model_validate(
            {**row.record, "attempt": row.attempt, "generation": row.generation}
        )
    except (ValidationError, TypeError) as error:
        _log.error("unreadable epoch", job_id=row.job_id, epoch=row.epoch, error=str(error))
        return None


def decision_views(
    rows: Iterable[DecisionRow], overrides: Iterable[OverrideRow]
) -> list[DecisionView]:
    """Build the views of decisions, without unreadable ones, from their rows and the overrides of
    the job.
    """
    users = {row.id: row.requested_by for row in overrides}
    views = (_decision_view(row, users) for row in rows)
    return [view for view in views if view is not None]


def _decision_view(row: DecisionRow, users: Mapping[str, str | None]) -> DecisionView | None:
    decision = _decision_of(row)
    if decision is None:
        return None
    plain = {"attempt": row.attempt, "generation": row.generation, "time": row.time}
    named = name_requesters(decision, users)
    return DecisionView.model_validate({**plain, "decision": decision, "user_by_override": named})


def _decision_of(row: DecisionRow) -> Decision | None:
    """Read the stored decision; None if this version cannot."""
    try:
        return decision_from_json(row.decision)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.error("unreadable decision", job_id=row.job_id, step=row.step, error=str(error))
        return None


def event_document(row: EventRow) -> dict[str, Any]:
    """Build the JSON of one event; as stored if this version does not know its type."""
    fields = {name: getattr(row, name) for name in EventView.model_fields}
    fields["data"] = row.data
    try:
        return EventView.model_validate(fields).model_dump(mode="json")
    except ValidationError as error:
        _log.error("unreadable event", job_id=row.job_id, seq=row.seq, error=str(error))
        return fields


def override_view(row: OverrideRow, acks: list[AckRow]) -> OverrideView:
    """Build the view of one override with its acknowledgements."""
    ack_list = [{"rank": ack.rank, "step": ack.step, "digest": ack.digest} for ack in acks]
    named = {
        name: getattr(row, name)
        for name in OverrideView.model_fields
        if name not in {"acks", "ack_list"}
    }
    return OverrideView.model_validate(
        {**named, **override_columns(row), "acks": len(ack_list), "ack_list": ack_list}
    )


def schedule_view(job: JobRow, newest: DecisionRow | None) -> ScheduleView:
    """Build the schedule in force. Before the first decision every layer is critical, like the
    detector's start.
    """
    decision = _decision_of(newest) if newest else None
    spec = _read_spec(job)
    config = spec.config() if spec else None
    progress = progress_view(job)
    is_known = config is not None and (newest is None or decision is not None)
    names = layer_names(job)
    start = (
        _start_levels(config, stored_layers(job))
        if config and is_known
        else dict.fromkeys(names, _UNKNOWN_LEVEL)
    )
    layers = [
        _layer_schedule(layer, decision, start=start[layer.name]) for layer in stored_layers(job)
    ]
    return ScheduleView(
        epoch=progress.epoch if progress else 0,
        step=progress.step if progress else 0,
        layers=layers,
        batch=_batch_schedule(spec, decision) if spec else None,
        **(_whole_model_fields(decision) if decision else _first_local_steps(config)),
    )


def _first_local_steps(config: Config | None) -> dict[str, int]:
    """Return the local steps of the first round, before which nothing is decided."""
    if config is None or config.local_steps is None:
        return {}
    length = config.local_steps.length(step=0, fall=1.0)
    return {"local_steps": length, "policy_local_steps": length}


def _whole_model_fields(decision: Decision) -> dict[str, Any]:
    return {
        "local_steps": decision.local_steps,
        "policy_local_steps": decision.policy_local_steps or decision.local_steps,
        "local_steps_said_by": decision.local_steps_override or "policy",
        "optimizer": dict(decision.optimizer),
        "optimizer_said_by": dict(decision.optimizer_overrides),
    }


def _read_spec(job: JobRow) -> JobSpec | None:
    """Return the spec with the current limits on workers; None if this version rejects it."""
    try:
        return spec_of(job)
    except UnreadableSpec:
        return None


def _batch_schedule(spec: JobSpec, decision: Decision | None) -> BatchSchedule | None:
    batch = spec.config().batch
    if batch is None:
        return None
    size = decision.global_batch if decision and decision.global_batch else batch.low
    level = decision.batch_level if decision else "low"
    return BatchSchedule(
        global_batch=size,
        level=level,
        policy_level=(decision.policy_batch_level if decision else None) or level or "low",
        low=batch.low,
        high=batch.high,
        min=spec.min_global_batch,
        said_by=(decision.batch_override if decision else None) or "policy",
    )


def _start_levels(config: Config, layers: Sequence[LayerInfo]) -> dict[str, Level]:
    """Return the levels that the policy, or the warm-up, chooses before the first report."""
    sizes = {layer.name: math.prod(layer.shape) for layer in layers}
    if config.warm_up is not None:
        warm = config.warm_up.level
        return dict.fromkeys(sizes, Level(name=warm, method=warm))
    regimes: dict[str, Regime] = dict.fromkeys(sizes, "critical")
    levels = {level.name: level for level in config.ladder()}
    options = check_policy(config.policy, config.policy_options)
    picked = POLICIES[config.policy].initial_levels(regimes, 0, options, size_by_layer=sizes)
    return {
        layer: levels.get(name, Level(name=name, method=name)) for layer, name in picked.items()
    }


def _layer_schedule(layer: LayerInfo, decision: Decision | None, *, start: Level) -> LayerSchedule:
    name, regime = layer.name, "critical"
    level = policy = start
    said_by = "policy"
    if decision:
        level, regime = (
            decision.level_by_layer.get(name, start),
            decision.regime_by_layer.get(name, "critical"),
        )
        policy = decision.policy_level_by_layer.get(name, level)
        said_by = decision.override_by_layer.get(name, "policy")
    return LayerSchedule(
        layer=name,
        shape=layer.shape,
        regime=regime,
        level=level.name,
        method=level.method,
        options=dict(level.options),
        policy_level=policy.name,
        said_by=said_by,
    )


def cluster_view(row: ClusterRow | None, jobs: list[JobRow]) -> ClusterView:
    """Build the view of the cluster and of what the jobs reserve."""
    found = row.nodes if row else []
    nodes = [NodeView.model_validate({**node, "name": name_of_node(node)}) for node in found]
    usable = [node for node in nodes if node.alive and not node.draining]
    return ClusterView(
        reachable=bool(row and row.reachable),
        message=row.message if row else "",
        seen_at=row.seen_at if row else None,
        cpus=sum(node.cpus for node in usable),
        gpus=sum(node.gpus for node in usable),
        cpus_reserved=sum(job.workers * resource_request(job).cpus for job in jobs),
        gpus_reserved=sum(job.workers * resource_request(job).gpus for job in jobs),
        cpus_foreign=sum(node.cpus_foreign for node in usable),
        gpus_foreign=sum(node.gpus_foreign for node in usable),
        dashboard_url=row.dashboard_url if row else None,
        nodes=nodes,
    )
