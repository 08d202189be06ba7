"""Rows of panels of the dashboard *Job*, with their queries.

Several API processes export the same series, so job queries drop `instance` with `max`, and
counters are compared after that. `$job_id` is the dashboard's variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression and the name of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel; the grid is 24 columns wide."""

    title: str
    description: str
    unit: str = "none"
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "timeline"] = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    values: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Names and colours of the values of a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def of_job(name: str, more: str = "", *, drop: str = "") -> str:
    """Build the query for one series of the job from any API process; `drop` names further labels
    to remove.
    """
    labels = ", ".join(part for part in ('job_id="$job_id"', more) if part)
    dropped = ", ".join(part for part in ("instance", drop) if part)
    return f"max without ({dropped}) ({name}{{{labels}}})"


def rate_of_job(name: str, more: str = "", *, drop: str = "") -> str:
    """Build the query for the rate per second of one series of the job."""
    labels = ", ".join(part for part in ('job_id="$job_id"', more) if part)
    dropped = ", ".join(part for part in ("instance", drop) if part)
    return f"max without ({dropped}) (rate({name}{{{labels}}}{RATE}))"


def _kind(kind: str) -> str:
    return f'kind="{kind}"'


def _state(state: str) -> str:
    return f'state="{state}"'


def one_query(expr: str, legend: str) -> tuple[Query, ...]:
    """Build the queries of a panel that has one."""
    return (Query(expr=expr, legend=legend),)


_DENSE, _SENT = (
    of_job("accordion_job_bytes_total", _kind(kind), drop="kind") for kind in ("dense_wire", "wire")
)
_SAVED = f"{_DENSE} / ({_SENT} > 0)"
_DENSE_RATE, _SENT_RATE, _CONTROL_RATE = (
    rate_of_job("accordion_job_bytes_total", _kind(kind), drop="kind")
    for kind in ("dense_wire", "wire", "control_wire")
)
_STEPS = "{} / {}".format(
    *(
        of_job("accordion_job_steps", _state(state), drop="state")
        for state in ("finished", "planned")
    )
)
_LEVELS = " + ".join(
    f"{code} * " + of_job("accordion_group_level", f'level="{level}"', drop="level")
    for code, level in enumerate(("none", "low", "high", "other"))
)
_REGIME_NAMES = {0: ("stable", "blue"), 1: ("critical", "orange")}
_LEVEL_NAMES = {
    0: ("none", "text"),
    1: ("low", "light-blue"),
    2: ("high", "dark-blue"),
    3: ("custom", "purple"),
}
YES_NO = {0: ("no", "red"), 1: ("yes", "green")}

NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Job",
            kind="stat",
            unit="string",
            width=6,
            height=4,
            description="Name, kind, task, method and policy of the job.",
            queries=one_query(
                of_job("accordion_job_info"),
                "{{name}} ({{kind}}): {{task}}, {{method}}, {{policy}}",
            ),
        ),
        Panel(
            title="Progress",
            kind="stat",
            unit="percentunit",
            width=3,
            height=4,
            description=(
                "Finished steps as a fraction of planned steps; empty for guest runs, whose plan is"
                " unknown."
            ),
            queries=one_query(_STEPS, "done"),
        ),
        Panel(
            title="Training loss",
            kind="stat",
            width=3,
            height=4,
            description="Newest training loss.",
            queries=one_query(of_job("accordion_job_loss", _kind("training")), "loss"),
        ),
        Panel(
            title="Traffic saved",
            kind="stat",
            width=3,
            height=4,
            description=(
                "Bytes of uncompressed gradients (fp32) divided by bytes sent, both on the wire,"
                " since the start of the job; empty for one worker, which sends nothing."
            ),
            queries=one_query(_SAVED, "times"),
        ),
        Panel(
            title="Workers",
            kind="stat",
            width=3,
            height=4,
            description="Workers in training now.",
            queries=one_query(of_job("accordion_job_workers_alive"), "alive"),
        ),
        Panel(
            title="Restarts",
            kind="stat",
            width=3,
            height=4,
            description="Worker groups that failed.",
            queries=one_query(of_job("accordion_job_restarts_total"), "restarts"),
        ),
        Panel(
            title="Checkpoint age",
            kind="stat",
            unit="s",
            width=3,
            height=4,
            description="Seconds of work that a failure would lose now.",
            queries=one_query(
                f"time() - {of_job('accordion_job_checkpoint_timestamp_seconds')}", "age"
            ),
        ),
        Panel(
            title="State",
            kind="timeline",
            width=24,
            height=4,
            description="State of the job over time.",
            values=YES_NO,
            queries=one_query(f"{of_job('accordion_job_state')} == 1", "{{state}}"),
        ),
    ),
)
LEARNING = Row(
    title="Learning",
    panels=(
        Panel(
            title="Loss",
            width=6,
            description="Training loss and the loss of the newest evaluation.",
            queries=one_query(of_job("accordion_job_loss"), "{{kind}}"),
        ),
        Panel(
            title="Evaluation",
            width=6,
            description="Metrics of the newest evaluation, such as accuracy.",
            queries=one_query(of_job("accordion_job_metric"), "{{kind}}"),
        ),
        Panel(
            title="Learning rate",
            width=6,
            description="Current learning rate.",
            queries=one_query(of_job("accordion_job_learning_rate"), "learning rate"),
        ),
        Panel(
            title="Epochs",
            width=6,
            description=(
                "Finished and planned epochs; a decrease is work that a failure rolled back."
            ),
            queries=one_query(of_job("accordion_job_epochs"), "{{state}}"),
        ),
    ),
)
CONTROLLER = Row(
    title="Controller",
    panels=(
        Panel(
            title="Regimes",
            kind="timeline",
            width=12,
            values=_REGIME_NAMES,
            description=(
                "Regime by layer group: critical if the gradient of any of its layers changes"
                " quickly."
            ),
            queries=one_query(of_job("accordion_group_regime", _state("critical")), "{{group}}"),
        ),
        Panel(
            title="Levels",
            kind="timeline",
            width=12,
            values=_LEVEL_NAMES,
            description="Lightest compression level in force by layer group.",
            queries=one_query(_LEVELS, "{{group}}"),
        ),
        Panel(
            title="Gradient change and threshold",
            width=8,
            description=(
                "Relative change of the gradient norm at the last comparison; critical at or above"
                " the threshold."
            ),
            queries=(
                Query(expr=of_job("accordion_group_change_ratio"), legend="{{group}}"),
                Query(expr=of_job("accordion_job_threshold_ratio"), legend="threshold"),
            ),
        ),
        Panel(
            title="Gradient norm",
            width=8,
            description=(
                "Norm of the mean gradient over the newest complete window, by layer group."
            ),
            queries=one_query(of_job("accordion_group_gradient_norm"), "{{group}}"),
        ),
        Panel(
            title="Decisions and overrides",
            width=8,
            description=(
                "Decisions per minute, overrides by state, steps that each worker takes between two"
                " exchanges, and the agreement of the workers' gradients."
            ),
            queries=(
                Query(
                    expr=f"60 * {rate_of_job('accordion_job_decisions_total')}",
                    legend="decisions per minute",
                ),
                Query(expr=of_job("accordion_job_overrides"), legend="overrides {{state}}"),
                Query(expr=of_job("accordion_job_local_steps"), legend="local steps"),
                Query(expr=of_job("accordion_job_agreement"), legend="agreement"),
            ),
        ),
    ),
)
COMMUNICATION = Row(
    title="Communication",
    panels=(
        Panel(
            title="Bytes per second",
            unit="Bps",
            width=12,
            description=(
                "Sent on the wire by one worker, beside uncompressed gradients (fp32) and fp16."
                " Control bytes are signals, decisions and probes of the link."
            ),
            queries=(
                Query(expr=_SENT_RATE, legend="sent"),
                Query(expr=_CONTROL_RATE, legend="of it control"),
                Query(expr=_DENSE_RATE, legend="uncompressed"),
                Query(expr=f"{_DENSE_RATE} / 2", legend="in fp16"),
            ),
        ),
        Panel(
            title="Traffic saved over time",
            width=12,
            description=(
                "Bytes of uncompressed gradients divided by bytes sent, both on the wire, now;"
                " empty while no step is made."
            ),
            queries=one_query(
                f"{_DENSE_RATE} / ({_SENT_RATE} > 0)", "times fewer than uncompressed"
            ),
        ),
    ),
)
STEP_TIME = Row(
    title="Step time",
    panels=(
        Panel(
            title="Time by phase",
            unit="s",
            width=12,
            stacked=True,
            description="Seconds that rank 0 spends in each phase, per second.",
            queries=one_query(rate_of_job("accordion_step_phase_seconds_total"), "{{phase}}"),
        ),
        Panel(
            title="Wait for exchanges",
            unit="s",
            width=12,
            description=(
                "Seconds for which a step waits for exchanges: measured before a decision, and"
                " predicted by level, which only the policy cost_aware does."
            ),
            queries=(
                Query(expr=of_job("accordion_exchange_wait_seconds"), legend="measured"),
                Query(
                    expr=of_job("accordion_exchange_wait_predicted_seconds"),
                    legend="predicted at {{level}}",
                ),
            ),
        ),
        Panel(
            title="Samples per second",
            width=12,
            description="Training samples per second over all workers.",
            queries=one_query(of_job("accordion_job_samples_per_second"), "samples/s"),
        ),
    ),
)
ELASTICITY = Row(
    title="Elasticity",
    panels=(
        Panel(
            title="Workers",
            description=(
                "Workers in training and allocated, and the minimum and maximum that users allow."
            ),
            queries=(
                Query(expr=of_job("accordion_job_workers_alive"), legend="alive"),
                Query(expr=of_job("accordion_job_workers_wanted"), legend="allocated"),
                Query(expr=of_job("accordion_job_workers_allowed"), legend="{{limit}} allowed"),
            ),
        ),
        Panel(
            title="Resizes and recoveries",
            description="Changes of worker group since the start of the job, by cause.",
            queries=(
                Query(expr=of_job("accordion_job_resizes_total"), legend="resized: {{cause}}"),
                Query(expr=of_job("accordion_job_recoveries_total"), legend="recovered: {{cause}}"),
            ),
        ),
        Panel(
            title="Seconds lost",
            unit="s",
            description=(
                "Seconds without a step during changes of worker group, since the start of the job."
            ),
            queries=one_query(of_job("accordion_job_lost_seconds_total"), "lost"),
        ),
        Panel(
            title="Steps rolled back",
            description=(
                "Steps repeated because they followed the newest checkpoint, since the start of the"
                " job."
            ),
            queries=one_query(of_job("accordion_job_rolled_back_steps_total"), "rolled back"),
        ),
        Panel(
            title="Compute by rank",
            unit="s",
            description=(
                "Mean seconds per step that each rank loads data and computes, over 10 s; a"
                " straggler stands out."
            ),
            queries=one_query(of_job("accordion_step_compute_seconds"), "rank {{rank}}"),
        ),
        Panel(
            title="Checkpoint time",
            unit="s",
            description=(
                "Seconds that saving the newest checkpoint took, and how long it blocked training."
            ),
            queries=(
                Query(
                    expr=of_job("accordion_job_checkpoint_duration_seconds"), legend="saved after"
                ),
                Query(
                    expr=of_job("accordion_job_checkpoint_blocked_seconds"),
                    legend="training blocked",
                ),
            ),
        ),
        Panel(
            title="Progress report age",
            unit="s",
            description="Seconds since the newest progress report.",
            queries=one_query(
                f"time() - {of_job('accordion_job_progress_timestamp_seconds')}", "age"
            ),
        ),
        Panel(
            title="Checkpoint size",
            unit="decbytes",
            description="Size of the newest checkpoint.",
            queries=one_query(of_job("accordion_job_checkpoint_size_bytes"), "size"),
        ),
    ),
)
ROWS = (NOW, LEARNING, CONTROLLER, COMMUNICATION, STEP_TIME, ELASTICITY)
ANNOTATIONS: Mapping[str, tuple[str, str]] = {
    "Decisions": (
        "blue",
        'changes(accordion_job_decisions_total{job_id="$job_id"}[$__interval]) > 0',
    ),
    "Overrides": (
        "purple",
        'changes(accordion_job_overrides{job_id="$job_id", state="APPLIED"}[$__interval]) > 0',
    ),
    "Resizes": ("green", 'changes(accordion_job_resizes_total{job_id="$job_id"}[$__interval]) > 0'),
    "Restarts": ("red", 'changes(accordion_job_restarts_total{job_id="$job_id"}[$__interval]) > 0'),
}
