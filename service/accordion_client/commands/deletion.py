"""`delete`: removes ended jobs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.batches import (
    BatchOwnerOption,
    DryRunOption,
    EndedLabelsOption,
    JobBatch,
    OptionalJob,
    act_on_batch,
    choose_batch,
    read_batch,
)
from accordion_client.commands.cli_support import JsonOption, UrlOption, connect_client, print_json

if TYPE_CHECKING:
    from accordion_client import Client

_SHOWN_JOBS = 5
"""Jobs that the question names."""


def delete(
    job: OptionalJob = None,
    *,
    labels: EndedLabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Delete an ended job, or all with some labels, with history, logs and checkpoints. This cannot
    be undone.
    """
    chosen = choose_batch(job, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        if isinstance(chosen, str):
            _delete_one(client, chosen, yes=yes, json=json)
            return
        if not yes and not dry_run:
            chosen = replace(chosen, ids=_confirm_all(client, chosen))
        act_on_batch(client, "delete", chosen, dry_run=dry_run, json=json)


def _delete_one(client: Client, job: str, *, yes: bool, json: bool) -> None:
    from accordion_service.domain.jobs.status_table import ENDED
    from accordion_service.errors import SettingsError

    found = client.find(job)
    if found.status not in ENDED:
        raise SettingsError(f"job {found.id} is {found.status}; cancel it before you delete it")
    if not yes:
        _confirm(f"{found.name} ({found.id}, {found.status})", "its history and checkpoints")
    deleted = client.delete_job(found.id)
    if json:
        print_json(deleted)
    else:
        typer.echo(f"deleted {deleted.name} ({deleted.id})")


def _confirm_all(client: Client, batch: JobBatch) -> list[str]:
    """Ask the user whether to delete the jobs of a batch; without any, nobody is asked. Return
    their IDs: jobs that match later are not deleted.
    """
    views = read_batch(client, "delete", batch, dry_run=True)
    planned = [job for view in views for job in view.items]
    if planned:
        shown = ", ".join(job.name for job in planned[:_SHOWN_JOBS])
        more = ", ..." if len(planned) > _SHOWN_JOBS else ""
        count = f"{len(planned)} job{'s' if len(planned) > 1 else ''}"
        owners = sorted({job.owner or "nobody" for job in planned})
        whose = f" of {', '.join(owners)}" if len(owners) > 1 else ""
        _confirm(f"{count}{whose} ({shown}{more})", "history and checkpoints")
    return [job.id for job in planned]


def _confirm(what: str, contents: str) -> None:
    """Ask the user whether to delete jobs.

    Raises:
        BadParameter: nobody can be asked.
        Abort: the user says no.
    """
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{what} would be deleted; confirm with --yes")
    typer.confirm(f"Delete {what} with {contents}?", abort=True, err=True)
