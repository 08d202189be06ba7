"""Explains what holds a job up, from its row and its newest decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.base.link_model import LinkModel, format_link
from accordion.policies import check_policy
from accordion_service.domain.capacity.waiting_message import format_waiting_message
from accordion_service.domain.jobs.status_table import STATUS_TABLE, Phase
from accordion_service.domain.jobs.statuses import Kind, Reason, Status
from accordion_service.domain.jobs.step_making import is_training
from accordion_service.domain.performance.bottleneck import find_bottleneck
from accordion_service.domain.performance.step_profile import JobSettings, StepProfile
from accordion_service.schemas.jobs import LayerSchedule
from accordion_service.schemas.why import ChangeView, WhyView
from accordion_service.store.tables.models import DecisionRow, JobRow
from accordion_service.store.tables.stored_documents import stored_reports
from accordion_service.store.tables.stored_spec import (
    UnreadableSpec,
    resource_request,
    submitted_spec,
)
from accordion_service.views.jobs import progress_view, schedule_view


def why_view(
    job: JobRow, newest: DecisionRow | None, first_without_capacity: str | None = None
) -> WhyView:
    """Build the answer from the newest progress of a job that trains or has ended.

    `first_without_capacity` is the id of the first queued job without capacity, which one behind it
    names.
    """
    progress = progress_view(job)
    updated_at = None if progress is None else progress.updated_at
    text = format_waiting_message(job.message, first_without_capacity)
    message = f": {text}" if text else ""
    if not _has_ended(job) and not is_training(job.status, job.reason):
        waits = job.reason == Reason.WAITING_FOR_STORAGE
        does = "it waits for its storage" if waits else f"it is {job.status}"
        return WhyView(sentence=f"The job does not train, {does}{message}", updated_at=updated_at)
    if progress is None or job.progress is None:
        ended = f"The job ended before its first report, it is {job.status}{message}"
        return WhyView(
            sentence=ended if _has_ended(job) else "The workers have not reported a step yet."
        )
    found = find_bottleneck(_step_profile(job, job.progress, newest))
    if found is None:
        then = f"it is {job.status}{message}" if _has_ended(job) else "ask again in some seconds."
        return WhyView(
            sentence=f"The job has trained too few steps to tell; {then}", updated_at=updated_at
        )
    change = found.change
    return WhyView(
        sentence=_at_the_end(found.sentence) if _has_ended(job) else found.sentence,
        cause=found.cause,
        share=found.share,
        step_s=found.step_s,
        seconds_by_cause=dict(found.seconds_by_cause),
        rank=found.rank,
        change=None if change is None else ChangeView.model_validate(change),
        wait_s_by_level=job.progress["wait_s_by_level"],
        exchange_wait_s=job.progress["exchange_wait_s"],
        updated_at=updated_at,
    )


def _has_ended(job: JobRow) -> bool:
    return STATUS_TABLE[Status(job.status)].phase == Phase.ENDED


def _at_the_end(sentence: str) -> str:
    return f"At the end, {sentence[0].lower()}{sentence[1:]}"


def _step_profile(job: JobRow, now: Mapping[str, Any], newest: DecisionRow | None) -> StepProfile:
    """Read what `Progress` reports."""
    link = now["link"]
    layers = schedule_view(job, newest).layers
    return StepProfile(
        step_s_by_phase=now["step_s_by_phase"],
        num_workers=now["world_size"],
        num_hosts=_count_hosts(job, now["world_size"]),
        compute_s_by_rank=now["compute_s_by_rank"],
        receive_s_by_rank=now["receive_s_by_rank"],
        link_text=(
            format_link(link["latency_s"], link.get("bytes_per_s", math.inf))
            if "latency_s" in link
            else ""
        ),
        wait_s_by_level=now["wait_s_by_level"],
        uncompressed_s=_uncompressed_s(layers, link, now["world_size"]),
        shares_by_rank=now["micro_batches_by_rank"],
        levels=frozenset(layer.level for layer in layers),
        methods=frozenset(layer.method for layer in layers),
        is_overridden=any(layer.said_by != "policy" for layer in layers),
        is_critical=any(layer.regime == "critical" for layer in layers),
        has_ended=_has_ended(job),
        is_guest=job.kind == Kind.GUEST,
        settings=_job_settings(job),
        times_exchanges=resource_request(job).gpus == 0,
    )


def _count_hosts(job: JobRow, size: int) -> int:
    """Return the hosts of the group that trains; 0 if unknown, as for one that has not verified its
    storage.
    """
    found = stored_reports(job)["storage"]
    return found["hosts"] if found and found["workers"] == size else 0


def _uncompressed_s(layers: Sequence[LayerSchedule], link: Mapping[str, float], size: int) -> float:
    """Predict the seconds of an exchange of these layers' fp32 gradients; 0 without a link."""
    if "latency_s" not in link or size < 2:
        return 0.0
    model = LinkModel(
        world_size=size,
        latency_s=link["latency_s"],
        bytes_per_s=link.get("bytes_per_s", math.inf),
    )
    return model.seconds_for("all-reduce", 4 * sum(math.prod(layer.shape) for layer in layers))


def _job_settings(job: JobRow) -> JobSettings:
    """Read the spec; nothing is known of one that this version refuses."""
    try:
        spec = submitted_spec(job)
    except UnreadableSpec:
        return JobSettings()
    low, high = spec.config().ladder()
    options = check_policy(spec.policy.name, spec.policy.options)
    return JobSettings(
        method=spec.compression.method,
        has_levels=low.options != high.options,
        policy=spec.policy.name,
        least_share=options["least"] if spec.policy.name == "gain" else None,
        is_plan_measured=spec.compression.buckets_per_exchange == "auto",
        has_script=spec.task.is_script,
        is_balanced=spec.workers.balance,
    )
