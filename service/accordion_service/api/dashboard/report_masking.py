"""Leaves values that could be secret out of what a report is made of; pure."""

from __future__ import annotations

from dataclasses import replace

from accordion_service.api.dashboard.report_content import ReportSource
from accordion_service.domain.jobs.shareable_spec import TextMask, hide_secrets


def mask_source(source: ReportSource) -> ReportSource:
    """Return a source without values that could be secret in its spec, messages and output."""
    job = source.job
    masked = TextMask(job.spec).apply_to_texts(
        {
            "job": job.message,
            "why": source.why.sentence,
            "overrides": [
                {"message": row.message, "reason": row.reason} for row in source.overrides
            ],
            "attempts": [{"message": row.message} for row in source.attempts],
            "events": [event["data"] for event in source.events],
            "log_lines": source.log_lines,
        }
    )
    hidden = {
        "message": masked["job"],
        "spec": hide_secrets(job.spec),
        "labels": hide_secrets(job.labels),
    }
    return replace(
        source,
        job=job.model_copy(update=hidden),
        why=source.why.model_copy(update={"sentence": masked["why"]}),
        overrides=[
            row.model_copy(update=texts)
            for row, texts in zip(source.overrides, masked["overrides"], strict=True)
        ],
        attempts=[
            row.model_copy(update=texts)
            for row, texts in zip(source.attempts, masked["attempts"], strict=True)
        ],
        events=[
            {**event, "data": data}
            for event, data in zip(source.events, masked["events"], strict=True)
        ],
        log_lines=masked["log_lines"],
    )
