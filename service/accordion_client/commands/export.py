"""`export`: all rows of a job as CSV or Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from accordion_client.commands.job_rows import collect_job_rows
from accordion_client.commands.output_file import open_folder
from accordion_client.commands.table_files import choose_writer
from accordion_service.domain.file_names import name_file


def export(
    job: JobArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="folder to write (default: JOB-rows)"),
    ] = None,
    kind: Annotated[
        Literal["csv", "parquet"],
        typer.Option("--format", help="Parquet keeps types, and needs the extra service"),
    ] = "csv",
    force: Annotated[
        bool, typer.Option("--force", help="replace files in an existing folder")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Write all rows of a job to CSV or Parquet files: epochs, decisions, both by layer, overrides,
    attempts and checkpoints.
    """
    write = choose_writer(kind)
    with connect_client(url) as client:
        found = client.find(job)
        with open_folder(to or Path(name_file(found.name, "-rows")), force=force) as folder:
            tables = collect_job_rows(client, found.id)
            for name, table in tables.items():
                write(table, folder.new / f"{name}.{kind}")
    rows = {name: table.num_rows for name, table in tables.items()}
    if json:
        print_json({"folder": str(folder.path), "format": kind, "rows": rows})
    else:
        told = ", ".join(f"{name} ({count})" for name, count in rows.items())
        typer.echo(f"wrote {folder.path} with the rows of {told}")
