"""Explains what holds a job up, from its row and its newest decision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accordion.link_model import format_link
from service.api.views import progress_view, schedule_view
from service.api.why_schemas import ChangeView, WhyView
from service.domain.bottleneck import StepProfile, find_bottleneck
from service.domain.job_status import STATUS_TABLE, Phase
from service.domain.jobs import Status
from service.store.models import DecisionRow, JobRow
from service.store.stored_spec import resource_request, spec_value


def why_view(job: JobRow, newest: DecisionRow | None) -> WhyView:
    """Build the answer from the newest progress of a job that trains or has ended."""
    status = Status(job.status)
    has_ended = STATUS_TABLE[status].phase == Phase.ENDED
    progress = progress_view(job)
    updated_at = None if progress is None else progress.updated_at
    if not has_ended and status != Status.RUNNING:
        message = f": {job.message}" if job.message else ""
        return WhyView(
            sentence=f"The job does not train, it is {status}{message}", updated_at=updated_at
        )
    if progress is None or job.progress is None:
        return WhyView(sentence="The workers have not reported a step yet.")
    found = find_bottleneck(_step_profile(job, job.progress, newest))
    if found is None:
        return WhyView(
            sentence="The job has trained too few steps to tell; ask again in some seconds.",
            updated_at=updated_at,
        )
    change = found.change
    return WhyView(
        sentence=_at_the_end(found.sentence) if has_ended else found.sentence,
        cause=found.cause,
        share=found.share,
        step_s=found.step_s,
        seconds_by_cause=dict(found.seconds_by_cause),
        rank=found.rank,
        change=None if change is None else ChangeView.model_validate(change),
        wait_s_by_level=job.progress.get("wait_s_by_level") or {},
        exchange_wait_s=job.progress.get("exchange_wait_s"),
        updated_at=updated_at,
    )


def _at_the_end(sentence: str) -> str:
    return f"At the end, {sentence[0].lower()}{sentence[1:]}"


def _step_profile(job: JobRow, now: Mapping[str, Any], newest: DecisionRow | None) -> StepProfile:
    """Read what `Progress` reports; older versions reported less."""
    link = now.get("link") or {}
    layers = schedule_view(job, newest).layers
    return StepProfile(
        step_s_by_phase=now.get("step_s_by_phase") or {},
        compute_s_by_rank=now.get("compute_s_by_rank") or (),
        receive_s_by_rank=now.get("receive_s_by_rank") or (),
        link_text=(
            format_link(link["latency_s"], link.get("bytes_per_s", math.inf))
            if "latency_s" in link
            else ""
        ),
        wait_s_by_level=now.get("wait_s_by_level") or {},
        shares_by_rank=now.get("micro_batches_by_rank") or (),
        is_balanced=spec_value(job, "workers.balance", True),
        levels=frozenset(layer.level for layer in layers),
        methods=frozenset(layer.method for layer in layers),
        policy=spec_value(job, "policy.name", ""),
        times_exchanges=resource_request(job).gpus == 0,
    )
