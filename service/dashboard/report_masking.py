"""Leaves values that could be secret out of what a report is made of; pure."""

from __future__ import annotations

from dataclasses import replace

from service.dashboard.report_content import ReportSource
from service.domain.shareable_spec import TextMask, hide_secrets

_MAX_LINE = 2000
"""Most characters of a line of output."""


def mask_source(source: ReportSource) -> ReportSource:
    """Return a source without values that could be secret in its spec, messages and output."""
    job = source.job
    mask = TextMask(job.spec)
    hidden = {
        "message": mask.apply(job.message),
        "spec": hide_secrets(job.spec),
        "labels": hide_secrets(job.labels),
    }
    return replace(
        source,
        job=job.model_copy(update=hidden),
        why=source.why.model_copy(update={"sentence": mask.apply(source.why.sentence)}),
        overrides=[
            row.model_copy(
                update={"message": mask.apply(row.message), "reason": mask.apply(row.reason)}
            )
            for row in source.overrides
        ],
        attempts=[
            row.model_copy(update={"message": mask.apply(row.message)}) for row in source.attempts
        ],
        events=[{**event, "data": mask.apply_to_texts(event["data"])} for event in source.events],
        log_lines=[mask.apply(line)[:_MAX_LINE] for line in source.log_lines],
    )
