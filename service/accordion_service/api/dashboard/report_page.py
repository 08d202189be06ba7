"""The report of a job, with the charts of the job's page."""

from __future__ import annotations

from typing import Any

from accordion_service.api.dashboard.report_content import (
    MAX_ROWS,
    ReportSource,
    list_figures,
    list_levels,
    list_tables,
)
from accordion_service.api.dashboard.report_frame import (
    BYTES_SENTENCE,
    PageParts,
    Pill,
    ReportPage,
    build_page,
)
from accordion_service.api.dashboard.report_masking import mask_source
from accordion_service.api.dashboard.router import CHARTS, Chart
from accordion_service.domain.jobs.removed_output import describe_removed_history
from accordion_service.domain.jobs.status_table import STATUS_TABLE
from accordion_service.domain.jobs.statuses import Kind, Status
from accordion_service.store.reads.report import ReportLimits
from accordion_service.store.reads.thinned_history import HistoryShare

REPORT_CHARTS = (
    *CHARTS,
    Chart(id="workers", title="Workers", note="at the end of the epoch"),
)
_MAX_EPOCHS = 200
"""Most epochs in the charts and tables, as many as the job's page loads at once."""
_MIN_EPOCHS = 20
_MAX_CELLS = 60_000
"""Most pairs of epoch and layer, as long as `_MIN_EPOCHS` epochs fit: of a model with very many
layers, fewer epochs and decisions are shown.
"""
_EPOCH_FIELDS = {
    "epoch",
    "step",
    "loss",
    "metrics",
    "lr",
    "local_steps",
    "agreement",
    "world_size",
    "bytes",
    "seconds_by_phase",
    "regime_by_layer",
    "level_by_layer",
}
"""Fields of an epoch that the charts draw."""
_DECISION_FIELDS = {
    "epoch",
    "step",
    "change_by_layer",
    "override_by_layer",
    "batch_override",
    "local_steps_override",
    "optimizer_overrides",
}
"""Fields of a decision that the charts draw."""


def choose_limits(num_layers: int) -> ReportLimits:
    """Return how much of a history is read for a report of a job with so many layers."""
    fitting = max(_MIN_EPOCHS, _MAX_CELLS // max(1, num_layers))
    return ReportLimits(
        history=HistoryShare(
            epochs=min(_MAX_EPOCHS, fitting),
            # Half as many again, for those after the last epoch.
            decisions=min(MAX_ROWS, fitting * 3 // 2),
        ),
        items=MAX_ROWS,
    )


def build_report(source: ReportSource) -> ReportPage:
    """Build the report of a job, or of a simulated run.

    Raises:
        SettingsError: plotly, which contains the chart code, is not installed.
    """
    source = mask_source(source)
    job, is_guest = source.job, source.job.kind is Kind.GUEST
    tone = STATUS_TABLE[job.status].tone
    status = Pill(text=job.status.capitalize(), tone="" if tone == "run" else tone)
    return build_page(
        PageParts(
            title=job.name,
            pills=[Pill(text="Guest run"), status] if is_guest else [status],
            **_describe_origin(source),
            message=job.message,
            is_failed=job.status is Status.FAILED,
            figures=list_figures(source),
            cause_title=f"What {'held' if job.ended_at else 'holds'} this job up",
            cause=source.why.sentence if source.why.cause else "",
            notes=_list_notes(source),
            charts=REPORT_CHARTS if source.epochs else (),
            missing_charts=(
                f"No epoch {'was' if job.ended_at else 'is'} finished, so there are no charts."
            ),
            levels=list_levels(job.spec),
            tables=list_tables(source),
            log_lines=source.log_lines,
            specs={"Registered settings" if is_guest else "Job spec": job.spec},
            measured=_describe_measures(source),
            script="report",
            data=_collect_chart_data(source),
            written_at=source.written_at,
        )
    )


def _describe_origin(source: ReportSource) -> dict[str, str]:
    """Return what is reported, its ID and where it comes from."""
    job = source.job
    kind, owner = "Guest run" if job.kind is Kind.GUEST else "Job", job.owner or ""
    about = f"{f' of {owner}' if owner else ''}, submitted {job.created_at:%Y-%m-%d %H:%M:%S} UTC"
    if source.simulated_workers:
        kind, about = "Simulation", f", {source.simulated_workers} simulated workers"
    labels = "".join(f" · {key}:{value}" for key, value in job.labels.items())
    return {"kind": kind, "id": job.id, "about": f"{about}{labels}"}


def _list_notes(source: ReportSource) -> list[str]:
    shown, whole = len(source.epochs), source.num_epochs
    thinned = (
        f"{shown} of {whole} epochs are shown, at equal distances from the first to the last."
        if shown < whole
        else ""
    )
    removed = describe_removed_history(source.events_removed, source.log_bytes_removed)
    return [note for note in (thinned, removed) if note]


def _describe_measures(source: ReportSource) -> str:
    timed = "Phases were timed on rank 0"
    if source.simulated_workers:
        timed = "Times are those of one process in which the workers took turns, not of a cluster"
    return f"{timed}, and {BYTES_SENTENCE}"


def _collect_chart_data(source: ReportSource) -> dict[str, Any]:
    """Return what `report.js` draws."""
    policy = source.job.spec.get("policy")
    layers = [row.layer for row in source.schedule.layers]
    return {
        "epochs": [row.model_dump(include=_EPOCH_FIELDS) for row in source.epochs],
        "decisions": [
            {"decision": {name: getattr(view.decision, name) for name in _DECISION_FIELDS}}
            for view in source.decisions
        ],
        "layers": layers or list(source.epochs[-1].level_by_layer if source.epochs else ()),
        "threshold": policy.get("threshold") if isinstance(policy, dict) else None,
        "overrides": [row.model_dump(exclude={"ack_list"}) for row in source.overrides],
        "events": list(source.events),
    }
