"""Rows of the store as answers of the api."""

from __future__ import annotations

from typing import Any

from accordion.messages import Decision, Level, Regime, decision_from_json
from accordion.policies import POLICIES
from service.api.schemas import (
    AttemptView,
    BatchSchedule,
    CheckpointView,
    ClusterView,
    DecisionView,
    EpochView,
    EventView,
    JobView,
    LayerSchedule,
    NodeView,
    OverrideView,
    ProgressView,
    ScheduleView,
)
from service.store.models import (
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
from workers.contract import JobSpec


def job_view(row: JobRow) -> JobView:
    """One job."""
    return JobView.model_validate(
        {
            **{name: getattr(row, name) for name in JobView.model_fields if name != "progress"},
            "progress": progress_view(row),
        }
    )


def progress_view(row: JobRow) -> ProgressView | None:
    """Where the job is; None before the first word from its workers."""
    if row.progress is None:
        return None
    now = row.progress
    steps = now.get("steps") or now["steps_per_epoch"] * now["epochs"]
    rate = now["samples_per_s"] / (now.get("global_batch") or row.spec["training"]["global_batch"])
    return ProgressView.model_validate(
        {
            **{name: now[name] for name in ("epoch", "epochs", "step", "samples_per_s", "loss", "lr", "bytes")},
            "compute_s_by_rank": now.get("compute_s_by_rank", ()),
            "steps": steps,
            "eta_s": max(0, steps - now["step"]) / rate if rate > 0 else None,
            "updated_at": now["time"],
        }
    )


def attempt_view(row: AttemptRow) -> AttemptView:
    """One attempt."""
    return AttemptView.model_validate(row)


def checkpoint_view(row: CheckpointRow) -> CheckpointView:
    """One checkpoint."""
    return CheckpointView.model_validate(row)


def epoch_view(row: EpochRow) -> EpochView:
    """One finished epoch."""
    return EpochView.model_validate({**row.record, "attempt": row.attempt, "generation": row.generation})


def decision_view(row: DecisionRow) -> DecisionView:
    """One decision."""
    return DecisionView.model_validate(
        {
            "attempt": row.attempt,
            "generation": row.generation,
            "time": row.time,
            "decision": decision_from_json(row.decision),
        }
    )


def event_view(row: EventRow) -> EventView:
    """One event."""
    return EventView.model_validate(row)


def override_view(row: OverrideRow, acks: list[AckRow]) -> OverrideView:
    """One override with the ranks that acknowledged it."""
    ack_list = [{"rank": ack.rank, "step": ack.step, "digest": ack.digest} for ack in acks]
    named = {name: getattr(row, name) for name in OverrideView.model_fields if name not in {"acks", "ack_list"}}
    return OverrideView.model_validate({**named, "acks": len(ack_list), "ack_list": ack_list})


def schedule_view(job: JobRow, newest: DecisionRow | None) -> ScheduleView:
    """What is in force per layer; before the first decision everything is critical, as the detector starts."""
    decision = decision_from_json(newest.decision) if newest else None
    spec = JobSpec.model_validate(job.spec)
    epoch = job.progress["epoch"] if job.progress else 0
    start = _start_levels(spec, [layer["name"] for layer in job.layers or []])
    layers = [_layer_schedule(layer, decision, start=start[layer["name"]]) for layer in job.layers or []]
    step = job.progress["step"] if job.progress else 0
    return ScheduleView(epoch=epoch, step=step, layers=layers, batch=_batch_schedule(spec, decision))


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
        said_by=(decision.batch_override if decision else None) or "policy",
    )


def _start_levels(spec: JobSpec, layers: list[str]) -> dict[str, Level]:
    """What the policy picks before it has seen anything."""
    regimes: dict[str, Regime] = dict.fromkeys(layers, "critical")
    rungs = {level.name: level for level in spec.config().ladder()}
    picked = POLICIES[spec.policy.name].choose(regimes, 0, spec.policy.options)
    return {layer: rungs.get(name, Level(name=name, method=name)) for layer, name in picked.items()}


def _layer_schedule(layer: dict[str, Any], decision: Decision | None, *, start: Level) -> LayerSchedule:
    name, regime = layer["name"], "critical"
    level = policy = start
    said_by = "policy"
    if decision:
        level, regime = decision.level_by_layer.get(name, start), decision.regime_by_layer.get(name, "critical")
        policy = decision.policy_level_by_layer.get(name, level)
        said_by = decision.override_by_layer.get(name, "policy")
    return LayerSchedule(
        layer=name,
        shape=tuple(layer["shape"]),
        regime=regime,
        level=level.name,
        method=level.method,
        options=dict(level.options),
        policy_level=policy.name,
        said_by=said_by,
    )


def cluster_view(row: ClusterRow | None, jobs: list[JobRow]) -> ClusterView:
    """The cluster and what our jobs hold of it."""
    nodes = [NodeView.model_validate(node) for node in row.nodes] if row else []
    usable = [node for node in nodes if node.alive and not node.draining]
    return ClusterView(
        reachable=bool(row and row.reachable),
        message=row.message if row else "",
        seen_at=row.seen_at if row else None,
        cpus=sum(node.cpus for node in usable),
        gpus=sum(node.gpus for node in usable),
        cpus_reserved=sum(job.workers * job.spec["workers"]["cpus"] for job in jobs),
        gpus_reserved=sum(job.workers * job.spec["workers"]["gpus"] for job in jobs),
        nodes=nodes,
    )
