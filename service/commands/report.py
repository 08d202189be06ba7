"""`report`: the result of a job as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    find_to_read,
    print_json,
)
from service.commands.format import format_bytes
from service.domain.file_names import name_file


def report(
    job: JobArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="file to write (default: JOB.html)"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Write the result of a job, its charts, overrides and decisions to one HTML page, which opens
    in a browser without the service.
    """
    from service.errors import SettingsError

    with connect_client(url) as client:
        found = find_to_read(client, job)
        file = out or Path(name_file(found.name, ".html"))
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a directory; give a file with --out")
        if file.exists() and not force:
            raise typer.BadParameter(f"{file} exists; give another file with --out, or --force")
        try:
            client.download_report(found.id, file)
        except OSError as error:
            raise SettingsError(
                f"{file} cannot be written ({error.strerror}); give another file with --out"
            ) from error
    size = file.stat().st_size
    if json:
        print_json({"file": str(file), "bytes": size})
    else:
        typer.echo(f"wrote {file} ({format_bytes(size)})")
