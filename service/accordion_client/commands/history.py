"""`show`: one job in detail, and `why`: what holds it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    find_to_read,
    print_json,
)
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.schemas.format import (
    format_duration,
    format_elasticity,
    format_epochs,
    format_layers,
    format_level,
    format_metric,
    format_metrics,
    format_milliseconds,
    format_missed_checkpoints,
    format_number,
    format_override,
    format_packages,
    format_ray_run,
    format_rounded,
    format_savings,
    format_sent_bytes,
    format_step,
    format_storage,
    format_time,
    format_workers,
    list_metric_names,
    name_override,
    replace_override_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel
    from rich.table import Table

    from accordion_client import Client
    from accordion_service.domain.performance.step_profile import Cause
    from accordion_service.schemas.history import CheckpointView, EpochPage
    from accordion_service.schemas.jobs import AttemptView, JobView, ScheduleView
    from accordion_service.schemas.loggers import LoggerView
    from accordion_service.schemas.overrides import OverrideView

SHOWN_EPOCHS = 50
"""Maximum rows of the epoch table; --json prints all epochs."""
_SHOWN_ATTEMPTS = 10
"""Maximum rows of the table of attempts; --json prints all attempts."""


def show(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Show a job: state, levels per layer, overrides, decisions, loggers, attempts, checkpoints,
    epochs.
    """
    with connect_client(url) as client:
        found = find_to_read(client, job)
        dashboard = None if found.ray_run is None else client.cluster().dashboard_url
        schedule, overrides = client.schedule(found.id), client.overrides(found.id).items
        if json:
            _print_document(client, found, schedule=schedule, overrides=overrides)
            return
        decisions = client.decisions(found.id, limit=1, newest_first=True)
        epochs = client.epochs(found.id, limit=SHOWN_EPOCHS, newest_first=True)
        loggers = client.loggers(found.id).items if found.spec.get("loggers") else []
        attempts = client.attempts(found.id).items
        checkpoints = client.checkpoints(found.id, kept=True).items
        wait = _describe_wait(client, found)
    out = create_console()
    for line in [*_summarize_job(found), *wait]:
        out.print(line)
    if dashboard is not None:
        out.print(f"dashboard  {dashboard}/#/actors")
    numbers = {override.id: override.number for override in overrides}
    if decisions.items:
        newest = decisions.items[0].decision
        names = {one.id: name_override(one.number, one.requested_by) for one in overrides}
        reason = replace_override_numbers(newest.reason, names.values())
        out.print(f"decisions  {decisions.total}, the newest for epoch {newest.epoch}: {reason}")
    has_rounds = bool(found.spec.get("local_steps"))
    for table in (
        _schedule_table(schedule, numbers, has_rounds=has_rounds),
        _override_table(overrides),
        _logger_table(loggers),
        _attempt_table(attempts),
        _checkpoint_table(checkpoints),
        _epoch_table(epochs, has_rounds=has_rounds),
    ):
        if table.row_count:
            out.print()
            out.print(table)


def _describe_wait(client: Client, job: JobView) -> list[str]:
    if job.status != "QUEUED":
        return []
    from accordion_client.commands.queue import describe_wait

    return describe_wait(client, job.id)


def _name_jobs(client: Client, text: str) -> str:
    from accordion_client.commands.queue import read_names, replace_job_ids

    return replace_job_ids(text, read_names(client))


def why(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Say what holds a job up, its share of a step, and the best change; of a queued job, what it
    waits for and what would help.
    """
    with connect_client(url) as client:
        found = find_to_read(client, job)
        answer = client.why(found.id)
        if json:
            print_json(answer)
            return
        is_queued = found.status == "QUEUED"
        sentence = _name_jobs(client, answer.sentence) if is_queued else answer.sentence
        wait = _describe_wait(client, found)
    out = create_console()
    for line in [sentence, *wait]:
        out.print(line)
    if answer.change is not None:
        bound = "up to " if answer.change.is_upper_bound else ""
        factor = format_rounded(answer.change.speedup, 2)
        speedup = f"{bound}{factor} times as many samples per second"
        out.print(f"{answer.change.text}: {speedup}.")
    if answer.step_s:
        out.print()
        out.print(_parts_table(answer.seconds_by_cause, answer.step_s))


def _parts_table(seconds_by_cause: Mapping[Cause, float], step_s: float) -> Table:
    from accordion_service.domain.performance.bottleneck import PART_NAMES

    table = _new_table("a step", "PART", "TIME", "SHARE")
    for cause, seconds in sorted(seconds_by_cause.items(), key=lambda part: -part[1]):
        if seconds > 0.0:
            table.add_row(
                PART_NAMES[cause], format_milliseconds(seconds), f"{seconds / step_s:.0%}"
            )
    return table


def _print_document(
    client: Client, job: JobView, *, schedule: ScheduleView, overrides: list[OverrideView]
) -> None:
    """Print the job with its whole history as JSON."""
    parts: dict[str, Iterable[BaseModel]] = {
        "overrides": overrides,
        "decisions": client.all_decisions(job.id),
        "epochs": client.all_epochs(job.id),
        "loggers": client.loggers(job.id).items,
        "attempts": client.attempts(job.id).items,
        "checkpoints": client.checkpoints(job.id).items,
    }
    print_json(
        {
            "job": job.model_dump(mode="json"),
            "schedule": schedule.model_dump(mode="json"),
            **{
                name: [item.model_dump(mode="json") for item in items]
                for name, items in parts.items()
            },
        }
    )


def _summarize_job(job: JobView) -> list[str]:
    from accordion_service.domain.documents import value_at

    now = job.progress
    task, method, policy, precision = (
        value_at(job.spec, place, "?")
        for place in ("task.name", "compression.method", "policy.name", "training.precision")
    )
    method += _format_levels(job.spec.get("compression"))
    batch = job.spec.get("batch")
    lines = [
        f"{job.name}  {job.id}",
        f"status     {job.status} ({job.reason}){f': {job.message}' if job.message else ''}",
        (
            f"task       {task}{'' if precision in {'fp32', '?'} else f' in {precision}'},"
            f" {method}, policy {policy}"
        ),
        (
            "workers   "
            f" {format_workers(job)}{'' if job.kind == 'guest' else f', attempt {job.attempt}'}"
        ),
    ]
    if isinstance(batch, dict):
        lines.append(f"batch      grows to {batch.get('high')} samples a step in stable regimes")
    lines += _summarize_removed(job)
    lines += _summarize_queueing(job)
    lines += _summarize_resources(job)
    if job.tally.resizes or job.tally.recoveries:
        lines.append(f"changes    {format_elasticity(job.tally)}")
    if now:
        measured = f", {format_metrics(job.metrics)}" if list_metric_names([job.metrics]) else ""
        lines += [
            f"progress   {format_epochs(now)}, {format_step(now)}",
            f"metrics    loss {format_number(now.loss)}, lr {format_number(now.lr, 3)}{measured}",
            f"bytes      {format_sent_bytes(now.bytes)}",
        ]
        if missed := now.failed_checkpoints_in_a_row:
            lines.append(f"unsaved    {format_missed_checkpoints(missed)}")
    return lines


def _format_levels(compression: object) -> str:
    """Return the levels and the warm-up as a text to append to the method."""
    if not isinstance(compression, dict):
        return ""
    low, high = compression.get("low"), compression.get("high")
    levels = f" {format_level(low)} / {format_level(high)}" if low or high else ""
    warm_up = compression.get("warm_up")
    if warm_up:
        levels += f" ({warm_up['level']} in the first {warm_up['steps']} steps)"
    return levels


def _summarize_removed(job: JobView) -> list[str]:
    """Return a line about output that is no longer kept; a message may point to it."""
    if not job.log_bytes_removed:
        return []
    removed = format_bytes(job.log_bytes_removed)
    if job.history_removed_at is None:
        return [f"output     the oldest {removed} are no longer kept (ACCORDION_MAX_LOG_BYTES)"]
    time = format_time(job.history_removed_at)
    return [
        f"output     the oldest {removed}, perhaps with a traceback that the status names, were"
        f" removed by retention {time} (ACCORDION_HISTORY_RETENTION_S)"
    ]


def _summarize_resources(job: JobView) -> list[str]:
    """Return lines about what the workers run in, keep and install."""
    lines = [] if job.ray_run is None else [f"ray        {format_ray_run(job.ray_run)}"]
    if job.storage is not None:
        lines.append(f"storage    {format_storage(job.storage)}")
    if job.packages is not None:
        lines.append(f"packages   {format_packages(job.packages.model_dump())}")
    return lines


def _summarize_queueing(job: JobView) -> list[str]:
    """Return lines about the owner and the archive, and about when a job starts and how long it
    trains.
    """
    labels = ", ".join(f"{key}:{value}" for key, value in job.labels.items())
    lines = [f"owner      {job.owner}"] if job.owner is not None else []
    lines.append(f"priority   {job.priority}{f', labels {labels}' if labels else ''}")
    lines += _summarize_limits(job)
    if job.archived:
        lines.append(f"archived   'accordion unarchive {job.id}' lists it again")
    return lines


def _summarize_limits(job: JobView) -> list[str]:
    from accordion_service.domain.documents import value_at

    training_s, total_s = (
        value_at(job.spec, f"limits.{name}", 0.0) for name in ("training_seconds", "total_seconds")
    )
    lines = [f"limit      {format_duration(training_s)} of training"] if training_s else []
    if total_s:
        until = f", until {format_time(job.times_out_at)}" if job.times_out_at else ""
        lines.append(f"limit      {format_duration(total_s)} in all{until}")
    return lines


def _new_table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column)
    return table


def _schedule_table(
    schedule: ScheduleView, numbers: Mapping[str, int], *, has_rounds: bool
) -> Table:
    def decided_by(said_by: str) -> str:
        return f"override #{numbers[said_by]}" if said_by in numbers else said_by

    table = _new_table(
        "in force", "LAYER", "SHAPE", "REGIME", "LEVEL", "METHOD", "POLICY'S LEVEL", "DECIDED BY"
    )
    for row in schedule.layers:
        shape = "x".join(str(length) for length in row.shape)
        method = f"{row.method} {format_level(row.options)}".rstrip()
        table.add_row(
            row.layer,
            shape,
            row.regime,
            row.level,
            method,
            row.policy_level,
            decided_by(row.said_by),
        )
    if schedule.batch is not None:
        batch = schedule.batch
        size = f"{batch.global_batch} samples a step"
        table.add_row(
            "global batch",
            "",
            "",
            batch.level or "by hand",
            size,
            batch.policy_level,
            decided_by(batch.said_by),
        )
    if has_rounds:
        rounds = (
            f"{schedule.local_steps} local step{'s' if schedule.local_steps > 1 else ''} a round"
        )
        said_by = decided_by(schedule.local_steps_said_by)
        table.add_row("rounds", "", "", "", rounds, str(schedule.policy_local_steps), said_by)
    for name, value in schedule.optimizer.items():
        said_by = decided_by(schedule.optimizer_said_by["lr" if name == "lr_factor" else name])
        table.add_row(name.replace("_", " "), "", "", "", f"{value:g}", "", said_by)
    return table


def _override_table(overrides: list[OverrideView]) -> Table:
    table = _new_table("overrides", "OVERRIDE", "BY", "REASON")
    for override in overrides:
        described = format_override(override.model_dump(mode="json"))
        table.add_row(described, override.requested_by or "", override.reason)
    return table


def _logger_table(loggers: list[LoggerView]) -> Table:
    table = _new_table("loggers", "KIND", "STATE", "EPOCHS SENT", "WHERE OR WHY NOT")
    for logger in loggers:
        where = logger.message or logger.location
        table.add_row(logger.kind, logger.state.value, str(logger.next_epoch), where)
    return table


def _attempt_table(attempts: list[AttemptView]) -> Table:
    shown = attempts[-_SHOWN_ATTEMPTS:]
    more = "" if len(shown) == len(attempts) else f", the newest {len(shown)} of {len(attempts)}"
    table = _new_table(f"attempts{more}", "ATTEMPT", "STATE", "BEGAN", "ENDED", "WORKERS", "WHY")
    for one in shown:
        state = "ended" if one.ended_at else "training" if one.started_at else "starting"
        times = (format_time(one.created_at), format_time(one.ended_at))
        why = one.message or one.reason.value
        table.add_row(str(one.number), state, *times, str(one.workers), why)
    return table


def _checkpoint_table(checkpoints: list[CheckpointView]) -> Table:
    columns = ("NEXT EPOCH", "STEP", "SIZE", "OBJECTIVE", "SAVED", "")
    table = _new_table("checkpoints", "NAME", *columns)
    for one in checkpoints:
        which = ", ".join(word for word in ("newest", "best") if getattr(one, word))
        place = (str(one.epoch), str(one.step), format_bytes(one.size_bytes))
        value = format_number(one.objective)
        table.add_row(one.name, *place, value, format_time(one.time), which)
    return table


def _epoch_table(page: EpochPage, *, has_rounds: bool) -> Table:
    epochs = page.items[::-1]
    names = list_metric_names(row.metrics for row in epochs)
    title = (
        "epochs"
        if len(epochs) == page.total
        else f"epochs, the newest {len(epochs)} of {page.total}"
    )
    rounds = ["LOCAL STEPS"] if has_rounds else []
    columns = ("LR", *rounds, "WORKERS", "SECONDS", "SENT", "SAVED", "LAYERS AT THE END")
    table = _new_table(title, "EPOCH", "LOSS", *(name.upper() for name in names), *columns)
    for row in epochs:
        table.add_row(
            str(row.epoch),
            format_number(row.loss),
            *(format_metric(name, row.metrics.get(name)) for name in names),
            format_number(row.lr, 3),
            *([str(row.local_steps)] if has_rounds else []),
            str(row.world_size),
            f"{sum(row.seconds_by_phase.values()):.1f}",
            format_bytes(row.bytes.wire),
            format_savings(row.bytes),
            format_layers(row.regime_by_layer, row.level_by_layer),
        )
    return table
