"""`delete`: removes an ended job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from service.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)


def delete(
    job: JobArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Delete an ended job with its history, logs and checkpoints. This cannot be undone."""
    from service.domain.job_status import ENDED
    from service.errors import SettingsError

    with connect_client(url) as client:
        found = client.find(job)
        if found.status not in ENDED:
            raise SettingsError(f"job {found.id} is {found.status}; cancel it before you delete it")
        if not yes:
            _confirm(f"{found.name} ({found.id}, {found.status})")
        deleted = client.delete_job(found.id)
    if json:
        print_json(deleted)
    else:
        typer.echo(f"deleted {deleted.name} ({deleted.id})")


def _confirm(what: str) -> None:
    """Ask the user whether to delete a job.

    Raises:
        BadParameter: nobody can be asked.
        Abort: the user says no.
    """
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{what} would be deleted; confirm with --yes")
    typer.confirm(f"Delete {what} with its history and checkpoints?", abort=True, err=True)
