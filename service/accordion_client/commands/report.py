"""`report`: the result of a job as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    find_to_read,
    print_json,
)
from accordion_client.commands.output_file import choose_output_file
from accordion_client.commands.simulated_jobs import list_simulated
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.file_names import name_file


def report(
    job: JobArgument,
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
    in a browser without the service.
    """
    if list_simulated(Path(job)):
        raise typer.BadParameter(
            f"{job} is a folder of simulations, which have no report; 'accordion compare' prints"
            " their figures, and 'accordion simulate' their epochs"
        )
    with connect_client(url) as client:
        found = find_to_read(client, job)
        with choose_output_file(to, name_file(found.name, ".html"), force=force) as file:
            client.download_report(found.id, file)
    size = file.stat().st_size
    if json:
        print_json({"file": str(file), "bytes": size})
    else:
        typer.echo(f"wrote {file} ({format_bytes(size)})")
