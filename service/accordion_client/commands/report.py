"""`report`: the result of a job, or of several runs, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    find_to_read,
    print_json,
)
from accordion_client.commands.compared_history import ComparedHistory
from accordion_client.commands.completion import complete_job
from accordion_client.commands.output_file import choose_output_file
from accordion_client.commands.simulated_jobs import SimulatedJob, list_simulated
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.file_names import name_file

if TYPE_CHECKING:
    from accordion_service.api.dashboard.report_frame import ReportPage

_MAX_STEM = 100
"""Most characters of the default name of a file, without its suffix."""
ReportedArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help=(
            "id, id prefix or name of a job, of which the unfinished one is taken if several match;"
            " or a folder of simulations; several are shown side by side"
        ),
        autocompletion=complete_job,
    ),
]


def report(
    jobs: ReportedArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="file to write (default: JOB.html)"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Write the result of a job, its charts, overrides and decisions to one HTML page, which opens
    in a browser without the service. Of several jobs, or of simulations with several seeds, the
    page has their means and intervals side by side.
    """
    if len(jobs) == 1 and not list_simulated(Path(jobs[0])):
        file = _download_page(jobs[0], to, force=force, url=url)
    else:
        file = _build_file(jobs, to, force=force, url=url)
    size = file.stat().st_size
    if json:
        print_json({"file": str(file), "bytes": size})
    else:
        typer.echo(f"wrote {file} ({format_bytes(size)})")


def _download_page(job: str, to: Path | None, *, force: bool, url: str) -> Path:
    """Write the page that the service builds of its job."""
    with connect_client(url) as client:
        found = find_to_read(client, job)
        with choose_output_file(to, name_file(found.name, ".html"), force=force) as file:
            client.download_report(found.id, file)
    return file


def _build_file(jobs: Sequence[str], to: Path | None, *, force: bool, url: str) -> Path:
    """Write a page that is built here."""
    from accordion_client.commands.job_histories import read_histories

    stem = "-".join(Path(job).resolve().name for job in jobs)[:_MAX_STEM]
    with choose_output_file(to, name_file(stem, ".html"), force=force) as file:
        page = _build_page(jobs, read_histories(jobs, url))
        file.write_bytes(b"".join(page.pieces))
    return file


def _build_page(names: Sequence[str], histories: Sequence[Sequence[ComparedHistory]]) -> ReportPage:
    """Build the page of a single simulated run, or of several runs side by side."""
    from accordion_client.commands.comparison import IncomparableError
    from accordion_client.commands.group_report import collect_groups, describe_groups
    from accordion_client.commands.simulated_report import read_source
    from accordion_service.api.dashboard.report_frame import build_page
    from accordion_service.api.dashboard.report_page import build_report

    written_at = datetime.now(UTC)
    runs = [run for found in histories for run in found]
    if len(runs) == 1 and isinstance(runs[0].job, SimulatedJob):
        return build_report(read_source(Path(runs[0].job.id), written_at=written_at))
    try:
        return build_page(describe_groups(collect_groups(names, histories), written_at=written_at))
    except IncomparableError as error:
        raise typer.BadParameter(str(error)) from None
