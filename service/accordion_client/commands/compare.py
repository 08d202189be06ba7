"""`compare`: two or more jobs side by side."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    create_console,
    create_table,
    print_json,
)
from accordion_client.commands.comparison import (
    ComparedJob,
    Comparison,
    IncomparableError,
    compare_jobs,
)
from accordion_client.commands.completion import complete_job
from accordion_client.commands.job_histories import read_histories
from accordion_client.commands.simulated_jobs import SimulatedJob, list_simulated
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.performance.metric_goals import name_direction
from accordion_service.schemas.format import (
    format_duration,
    format_metric,
    format_milliseconds,
    format_number,
)

if TYPE_CHECKING:
    from rich.table import Table


_MIN_PREFIX = 8
"""Fewest characters of an id beside a name."""
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help=(
            "ids, id prefixes or names of two or more jobs, of which the unfinished one is taken if"
            " several match; or folders of simulations"
        ),
        autocompletion=complete_job,
    ),
]


def compare(
    jobs: JobsArgument,
    *,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="metric to compare (default: the first job's objective, or the accuracy)",
        ),
    ] = None,
    reaches: Annotated[
        float | None,
        typer.Option(
            "--reaches",
            metavar="VALUE",
            help=(
                "show when the metric reached this value: the epoch, and the seconds of training;"
                " an accuracy is a fraction, such as 0.48"
            ),
        ),
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Compare jobs: what differs in their specs, their metric, time, bytes and workers."""
    if reaches is not None and not math.isfinite(reaches):
        raise typer.BadParameter(f"--reaches is {reaches}; give a finite number, such as 0.48")
    if len(jobs) < 2 and len(list_simulated(Path(jobs[0]))) < 2:
        raise typer.BadParameter(f"there is one job, {jobs[0]}; give two or more")
    histories = [one for found in read_histories(jobs, url) for one in found]
    try:
        compared = compare_jobs(histories, metric=metric, reaches=reaches, now=datetime.now(UTC))
    except IncomparableError as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        print_json(asdict(compared))
        return
    out = create_console()
    out.print(tabulate_figures(compared))
    if any(isinstance(one.job, SimulatedJob) for one in histories):
        out.print("times of simulations: those of their one process, not of a cluster")
    out.print()
    if compared.spec:
        out.print(tabulate_specs(compared))
    else:
        out.print("The specs differ only in the name.")


def tabulate_figures(compared: Comparison) -> Table:
    """Build the table of figures, one column for each job."""
    table = create_table("", *_title_jobs(compared.jobs))
    for label, cells in _list_rows(compared):
        table.add_row(_make_printable(label), *cells)
    return table


def tabulate_specs(compared: Comparison) -> Table:
    """Build the table of what differs in the specs, one column for each job."""
    table = create_table("SPEC", *_title_jobs(compared.jobs))
    for place, values in compared.spec.items():
        table.add_row(_make_printable(place), *map(_format_value, values))
    return table


def _title_jobs(jobs: Sequence[ComparedJob]) -> list[str]:
    """Return the names of jobs, with the beginning of the id where a name is not enough."""
    names = [_make_printable(job.name) for job in jobs]
    length = _find_unique_length([job.id for job in jobs])
    return [
        name if names.count(name) == 1 else f"{name} ({job.id[:length]})"
        for name, job in zip(names, jobs, strict=True)
    ]


def _find_unique_length(ids: Sequence[str]) -> int:
    """Return the length, at least `_MIN_PREFIX`, of the shortest prefixes that differ."""
    lengths = range(_MIN_PREFIX, max(map(len, ids)))
    return next(
        (n for n in lengths if len({id_[:n] for id_ in ids}) == len(ids)), max(map(len, ids))
    )


def _list_rows(compared: Comparison) -> list[tuple[str, list[str]]]:
    jobs, metric = compared.jobs, compared.metric
    rows = [
        ("status", [job.status for job in jobs]),
        ("epochs", [str(job.epochs) for job in jobs]),
        ("steps", [str(job.steps) for job in jobs]),
    ]
    if metric is not None:
        direction = name_direction(smaller=bool(compared.smaller_is_better))
        rows += [
            (f"final {metric}", [format_metric(metric, job.final) for job in jobs]),
            (f"best {metric} ({direction})", [_format_best(metric, job) for job in jobs]),
        ]
        if compared.reaches is not None:
            goal = f"{metric} reaches {compared.reaches:g}"
            rows.append((goal, [_format_reached(job) for job in jobs]))
    rows += [
        ("training loss", [format_number(job.loss) for job in jobs]),
        ("duration, with pauses", [format_duration(job.duration_s) for job in jobs]),
        ("time per step", [_format_seconds(job.step_s) for job in jobs]),
        *_list_phases(jobs),
        ("bytes sent", [format_bytes(job.sent_bytes) for job in jobs]),
        *_list_methods(jobs),
        ("uncompressed", [format_bytes(job.dense_bytes) for job in jobs]),
        ("compression", ["-" if job.ratio is None else f"{job.ratio:.1f}x" for job in jobs]),
        ("workers", [_format_workers(job) for job in jobs]),
    ]
    return rows


def _list_phases(jobs: Sequence[ComparedJob]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for job in jobs for name in job.step_s_by_phase)
    return [
        (f"  {name}", [_format_seconds(job.step_s_by_phase.get(name)) for job in jobs])
        for name in names
    ]


def _list_methods(jobs: Sequence[ComparedJob]) -> list[tuple[str, list[str]]]:
    parts = [job.sent_bytes_by_method for job in jobs]
    names = dict.fromkeys(name for one in parts for name in one)
    return [
        (f"  {name}", [format_bytes(one[name]) if name in one else "-" for one in parts])
        for name in names
    ]


def _format_seconds(seconds: float | None) -> str:
    return format_milliseconds(seconds) if seconds else "-"


def _format_best(metric: str, job: ComparedJob) -> str:
    if job.best_epoch is None:
        return "-"
    return f"{format_metric(metric, job.best)} in epoch {job.best_epoch}"


def _format_reached(job: ComparedJob) -> str:
    if job.reached_epoch is None:
        return "not reached"
    after = f", after {format_duration(job.reached_s)} of training"
    return f"in epoch {job.reached_epoch}{'' if job.reached_s is None else after}"


def _format_workers(job: ComparedJob) -> str:
    if job.fewest_workers == job.most_workers:
        return str(job.fewest_workers)
    return f"{job.fewest_workers} to {job.most_workers}"


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return _make_printable(value)
    text = json_format.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json_format.dumps(value)


def _make_printable(text: str) -> str:
    """Return a text as it is, or as JSON if it has characters that could control the terminal."""
    return text if text.isprintable() else json_format.dumps(text)
