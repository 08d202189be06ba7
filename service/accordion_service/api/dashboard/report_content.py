"""Figures and tables of a job's report, as texts; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accordion.base.messages import OverrideTarget
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.domain.performance.metric_goals import (
    choose_main_metric,
    find_best,
    get_objective_mode,
    is_smaller_better,
    list_values,
    name_direction,
)
from accordion_service.schemas.format import (
    METHODS_COLUMNS,
    NOTHING_SENT,
    format_duration,
    format_elasticity,
    format_layers,
    format_level,
    format_methods,
    format_metric,
    format_metrics,
    format_milliseconds,
    format_number,
    format_savings,
    format_user,
    format_worker_event,
    format_workers,
    name_override,
    replace_override_numbers,
)
from accordion_service.schemas.jobs import (
    AttemptView,
    DecisionView,
    EpochView,
    JobView,
    ProgressView,
    ScheduleView,
)
from accordion_service.schemas.overrides import OverrideView
from accordion_service.schemas.why import WhyView
from accordion_workers.spec.public_records import Bytes

METHODS_NOTE = (
    "of each worker; (local steps): changes of parameters by rounds; (control): signals, statistics"
    " and decisions; others: gradients"
)
MAX_ROWS = 300
"""Most rows of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """What a report is made of; each list is oldest first, and may lack a part of the history."""

    job: JobView
    schedule: ScheduleView
    why: WhyView
    epochs: Sequence[EpochView] = ()
    num_epochs: int = 0
    """Number of finished epochs, also of those that are left out."""
    decisions: Sequence[DecisionView] = ()
    num_decisions: int = 0
    """Number of decisions, also of those that are left out."""
    overrides: Sequence[OverrideView] = ()
    num_overrides: int = 0
    """Number of overrides, also of those that are left out."""
    attempts: Sequence[AttemptView] = ()
    num_attempts: int = 0
    """Number of attempts, also of those that are left out."""
    events: Sequence[Mapping[str, Any]] = ()
    """Events of the types in `REPORTED_EVENTS`, as JSON."""
    num_events: int = 0
    """Number of events of these types, also of those that are left out."""
    log_lines: Sequence[str] = ()
    """Newest lines of output, each with its source."""
    events_removed: int = 0
    """Number of events, of any type, that are no longer kept."""
    log_bytes_removed: int = 0
    """Size of the output that is no longer kept."""
    written_at: datetime
    simulated_workers: int = 0
    """Number of workers that one process simulated; 0 for a job, whose workers are processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its name."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """One table; cells are texts, not markup."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


REPORTED_EVENTS = ("status", "workers", "end")
"""Types of the events that a report shows."""


def list_figures(source: ReportSource) -> list[Figure]:
    """Return the result of a job, or how far it is, in a few numbers."""
    job, progress = source.job, source.job.progress
    trained = _describe_turns(source) if source.simulated_workers else _describe_time(source)
    figures = [*_list_results(source), trained]
    if progress is not None:
        sent = progress.bytes
        figures += [
            Figure(
                label="Bytes sent",
                value=format_bytes(sent.wire),
                note=_describe_sent(sent),
            ),
            Figure(
                label="Compression",
                value=format_savings(sent),
                note=f"less than uncompressed; in fp16 {format_bytes(sent.dense_wire / 2)}",
            ),
            Figure(label="Epochs", value=_count_epochs(progress), note=f"step {progress.step}"),
        ]
    if source.simulated_workers:
        simulated = f"{source.simulated_workers}"
        return [*figures, Figure(label="Workers", value=simulated, note="simulated")]
    cost = job.tally
    changes = format_elasticity(cost) if cost.resizes or cost.recoveries else "no change of workers"
    attempts = Figure(label="Attempts", value=str(job.attempt), note=changes)
    return [*figures, _describe_workers(source), attempts]


def _describe_sent(sent: Bytes) -> str:
    if not sent.wire and sent.dense:
        return NOTHING_SENT
    control = f"; {format_bytes(sent.control_wire)} of it control" if sent.control_wire else ""
    return f"by each worker; {format_bytes(sent.dense_wire)} uncompressed{control}"


def _count_epochs(progress: ProgressView) -> str:
    of = "" if progress.epochs is None else f" of {progress.epochs}"
    return f"{progress.epoch}{of}"


def _list_results(source: ReportSource) -> list[Figure]:
    job, epochs = source.job, source.epochs
    # Not every epoch is evaluated, and those with an evaluation may be left out.
    rows = [(row.epoch, row.metrics) for row in epochs]
    evaluated = [metrics for _, metrics in rows] + [job.metrics]
    names = [name for metrics in evaluated for name in metrics if math.isfinite(metrics[name])]
    name = choose_main_metric(names, job.spec)
    if name is None:
        return [Figure(label="Result", value="none", note="no epoch has been evaluated")]
    result = _describe_metric(source, name)
    if not epochs:
        return [result]
    return [result, Figure(label="Training loss", value=format_number(epochs[-1].loss))]


def _describe_metric(source: ReportSource, name: str) -> Figure:
    job, epochs = source.job, source.epochs
    values = list_values(name, ((row.epoch, row.metrics) for row in epochs))
    is_whole = len(epochs) == source.num_epochs
    notes = []
    if values and (is_whole or not math.isfinite(job.metrics.get(name, math.nan))):
        newest = values[-1].value
        if values[-1].epoch != epochs[-1].epoch:
            notes.append(f"in epoch {values[-1].epoch}")
    else:
        newest = job.metrics[name]
    smaller = is_smaller_better(name, get_objective_mode(name, job.spec))
    best = find_best(values, smaller=smaller)
    if best is not None:
        shown = f"{'' if is_whole else ' of the epochs shown'} ({name_direction(smaller=smaller)})"
        notes.append(f"best{shown}: {format_metric(name, best.value)} in epoch {best.epoch}")
    return Figure(
        label=f"{'Final' if job.ended_at else 'Newest'} {name}",
        value=format_metric(name, newest),
        note="; ".join(notes),
    )


def _describe_time(source: ReportSource) -> Figure:
    job = source.job
    if job.started_at is None:
        submitted = f"submitted {_format_time(job.created_at)}"
        return Figure(label="Time", value="not started", note=submitted)
    end = job.ended_at or source.written_at
    until = f"to {_format_time(job.ended_at)}" if job.ended_at else "and not ended yet"
    pauses = ", with the time between its attempts" if job.attempt > 1 else ""
    return Figure(
        label="Time",
        value=format_duration((end - job.started_at).total_seconds()),
        note=f"from {_format_time(job.started_at)} {until}{pauses}",
    )


def _describe_turns(source: ReportSource) -> Figure:
    return Figure(
        label="Time",
        value=format_duration(source.job.trained_s),
        note="of training in one process, in which the workers took turns",
    )


def _describe_workers(source: ReportSource) -> Figure:
    job = source.job
    sizes = [row.world_size for row in source.epochs] or [job.world_size]
    value = str(sizes[0]) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    if job.ended_at is None:
        note = format_workers(job)
    elif job.kind == Kind.GUEST:
        note = "started and stopped by its own script"
    else:
        note = f"{job.min_workers} to {job.max_workers} allowed"
    return Figure(label="Workers", value=value, note=note)


def list_tables(source: ReportSource) -> list[ReportTable]:
    """Return the tables that have rows."""
    names = {one.id: name_override(one.number, one.requested_by) for one in source.overrides}
    tables = (
        _tabulate_parts(source.why),
        _tabulate_overrides(source),
        _tabulate_decisions(source, names),
        _tabulate_changes(source),
        _tabulate_attempts(source),
        _tabulate_layers(source.schedule, names),
        _tabulate_methods(source.job.progress),
        _tabulate_epochs(source),
        _tabulate_phases(source),
    )
    return [table for table in tables if table.rows]


def list_levels(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the levels of the legend: the name of each color, and what it means."""
    compression = spec.get("compression")
    options = compression if isinstance(compression, Mapping) else {}
    ladder = [
        (name, f"{name}: {format_level(options[name])}" if options.get(name) else name)
        for name in ("low", "high")
    ]
    return [*ladder, ("none", "none"), ("half", "half: fp16"), ("other", "custom options")]


def _tabulate_parts(why: WhyView) -> ReportTable:
    whole = why.step_s or 0.0
    parts = sorted(why.seconds_by_cause.items(), key=lambda part: -part[1])
    return ReportTable(
        id="parts",
        title="Parts of a step",
        note="mean over the newest steps, rank 0",
        columns=("Part", "Time", "Share"),
        rows=[
            (cause.replace("_", " "), format_milliseconds(seconds), f"{seconds / whole:.0%}")
            for cause, seconds in parts
            if seconds > 0.0 and whole > 0.0
        ],
    )


_TARGETS: Mapping[OverrideTarget, str] = {
    "compression": "",
    "batch": "batch ",
    "local_steps": "local steps ",
    "lr": "learning rate ",
    "weight_decay": "weight decay ",
    "clip_norm": "clip_norm ",
}
"""What stands before the level of an override."""


def _tabulate_overrides(source: ReportSource) -> ReportTable:
    def describe(row: OverrideView) -> tuple[str, ...]:
        end = "end" if row.until is None else str(row.until)
        return (
            str(row.number),
            f"{_TARGETS[row.target]}{format_level(row.level)}",
            ", ".join(row.layers) or "-",
            f"{str(row.apply_at).replace('_', ' ') if row.epoch is None else row.epoch} to {end}",
            f"{row.state}{f': {row.message}' if row.message else ''}",
            row.requested_by or "-",
            row.reason or "-",
            _format_time(row.applied_at or row.created_at),
        )

    columns = ("No.", "Level", "Layers", "Epochs", "State", "By", "Reason", "Time")
    rows = [describe(row) for row in source.overrides[-MAX_ROWS:]]
    return ReportTable(
        id="overrides",
        title="Overrides",
        note=_count_shown(len(rows), source.num_overrides, "oldest first"),
        columns=columns,
        rows=rows,
    )


def _tabulate_decisions(source: ReportSource, names: Mapping[str, str]) -> ReportTable:
    def describe(view: DecisionView) -> tuple[str, ...]:
        decision = view.decision
        regimes = list(decision.regime_by_layer.values())
        levels = Counter(level.name for level in decision.level_by_layer.values())
        changes = [value for value in decision.change_by_layer.values() if value is not None]
        return (
            str(decision.epoch),
            str(decision.step),
            decision.cause.replace("_", " "),
            replace_override_numbers(decision.reason, names.values()),
            f"{regimes.count('critical')} of {len(regimes)}",
            ", ".join(f"{name} {count}x" for name, count in levels.most_common()),
            format_number(max(changes), 3) if changes else "-",
            _decided_by(decision.override_ids, names),
        )

    columns = ("Epoch", "Step", "Cause", "Reason", "Critical", "Levels", "Largest change", "By")
    rows = [describe(view) for view in source.decisions[-MAX_ROWS:]]
    return ReportTable(
        id="decisions",
        title="Decisions",
        note=_count_shown(len(rows), source.num_decisions),
        columns=columns,
        rows=rows,
    )


def _decided_by(overrides: Sequence[str], names: Mapping[str, str]) -> str:
    named = [f"override {names[id_]}" for id_ in overrides if id_ in names]
    return ", ".join(["policy", *(named or ["override"])]) if overrides else "policy"


def _tabulate_changes(source: ReportSource) -> ReportTable:
    rows = [
        (_format_time(event["time"]), str(event["type"]), _describe_event(event))
        for event in source.events[-MAX_ROWS:]
    ]
    about = "states of the job, and its workers; oldest first"
    return ReportTable(
        id="changes",
        title="Changes",
        note=_count_shown(len(rows), source.num_events, about),
        columns=("Time", "What", "Details"),
        rows=rows,
    )


def _describe_event(event: Mapping[str, Any]) -> str:
    """Describe an event, which another version of the service may have stored."""
    data = event["data"]
    try:
        if event["type"] == "workers":
            return format_worker_event(data)
        message = data["message"]
        return f"{data['status']}{format_user(data)}{f': {message}' if message else ''}"
    except (KeyError, TypeError, ValueError):
        return "an event that this version cannot read"


def _tabulate_attempts(source: ReportSource) -> ReportTable:
    def describe(row: AttemptView) -> tuple[str, ...]:
        cost = row.tally
        return (
            str(row.number),
            str(row.workers or "-"),
            _format_time(row.created_at),
            _format_time(row.ended_at),
            f"{row.reason}{f': {row.message}' if row.message else ''}",
            format_elasticity(cost) if cost.resizes or cost.recoveries else "-",
        )

    columns = ("No.", "Workers", "Began", "Ended", "State", "Changes of workers")
    rows = [describe(row) for row in source.attempts[-MAX_ROWS:]]
    return ReportTable(
        id="attempts",
        title="Attempts",
        note=_count_shown(len(rows), source.num_attempts),
        columns=columns,
        rows=rows,
    )


def _tabulate_layers(schedule: ScheduleView, names: Mapping[str, str]) -> ReportTable:
    rows = [
        (
            row.layer,
            "x".join(map(str, row.shape)),
            row.regime,
            row.level,
            f"{row.method} {format_level(row.options)}".rstrip(),
            row.policy_level,
            f"override {names[row.said_by]}" if row.said_by in names else row.said_by,
        )
        for row in schedule.layers[:MAX_ROWS]
    ]
    columns = ("Layer", "Shape", "Regime", "Level", "Method", "Policy's level", "By")
    return ReportTable(
        id="layers",
        title="Layers in the newest decision",
        note=_count_shown(len(rows), len(schedule.layers)),
        columns=columns,
        rows=rows,
    )


def _tabulate_methods(progress: ProgressView | None) -> ReportTable:
    sent = Bytes() if progress is None else progress.bytes
    return ReportTable(
        id="methods",
        title="Bytes by method",
        note=METHODS_NOTE,
        columns=METHODS_COLUMNS,
        rows=format_methods(sent.payload_by_method, sent.wire_by_method),
    )


def _tabulate_epochs(source: ReportSource) -> ReportTable:
    def describe(row: EpochView) -> tuple[str, ...]:
        return (
            str(row.epoch),
            str(row.step),
            format_number(row.loss),
            format_number(row.metrics.get("loss")),
            format_metrics(row.metrics),
            format_number(row.lr, 3),
            str(row.world_size),
            str(row.global_batch or "-"),
            format_bytes(row.bytes.wire),
            format_bytes(row.bytes.dense_wire),
            format_savings(row.bytes),
            format_layers(row.regime_by_layer, row.level_by_layer),
        )

    losses = ("Epoch", "Step", "Loss", "Eval loss", "Metrics", "Learning rate", "Workers", "Batch")
    return ReportTable(
        id="epochs",
        title="Epochs",
        note=_count_shown(len(source.epochs), source.num_epochs),
        columns=(*losses, "Sent", "Uncompressed", "Saved", "Layers"),
        rows=[describe(row) for row in source.epochs],
    )


def _tabulate_phases(source: ReportSource) -> ReportTable:
    phases = list(dict.fromkeys(name for row in source.epochs for name in row.seconds_by_phase))
    return ReportTable(
        id="seconds",
        title="Seconds by phase",
        note=_count_shown(len(source.epochs), source.num_epochs, "rank 0"),
        columns=("Epoch", *phases, "All"),
        rows=[
            (
                str(row.epoch),
                *(f"{row.seconds_by_phase.get(name, 0.0):.3f}" for name in phases),
                f"{sum(row.seconds_by_phase.values()):.3f}",
            )
            for row in source.epochs
        ],
    )


def _count_shown(shown: int, total: int, about: str = "") -> str:
    """Return the note of a table: what it is about, and how much is left out."""
    left_out = "" if shown >= total else f"{shown} of {total} are shown"
    return "; ".join(filter(None, [about, left_out]))


def _format_time(time: datetime | str | None) -> str:
    if time is None:
        return "-"
    known = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{known:%Y-%m-%d %H:%M:%S} UTC"
