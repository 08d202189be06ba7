"""Actions of commands on all jobs with some labels, and the options that choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import FAILED, print_json
from service.commands.completion import complete_job, complete_label

if TYPE_CHECKING:
    from service.api.batch_schemas import BatchView
    from service.client import Client

OptionalJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="job id, id prefix or name; if several match, the unfinished one",
        autocompletion=complete_job,
    ),
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY:VALUE",
        help="in place of JOB, all unfinished jobs with this label; may be repeated",
        autocompletion=complete_label,
    ),
]
EndedLabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY:VALUE",
        help="in place of JOB, all ended jobs with this label; may be repeated",
        autocompletion=complete_label,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="with --label, list the jobs and change nothing")
]


def choose_jobs(
    job: str | None, labels: list[str] | None, *, dry_run: bool, option: str = "--label"
) -> str | dict[str, str]:
    """Return the job, or the labels of the jobs, that a command is for; `option` gave the labels.

    Raises:
        BadParameter: neither or both are given, or a dry run is asked for one job.
        SettingsError: a label has another form.
    """
    from service.errors import SettingsError

    if (job is None) == (not labels):
        raise typer.BadParameter(f"give either JOB or {option}")
    if job is not None:
        if dry_run:
            raise typer.BadParameter(f"--dry-run is for {option}; 'accordion show' shows one job")
        return job
    chosen: dict[str, str] = {}
    for text in labels or []:
        key, _, value = text.partition(":")
        if not key or not value:
            raise SettingsError(f"{option} {text!r} is not of the form key:value")
        if chosen.setdefault(key, value) != value:
            raise SettingsError(f"{option} {key} is given twice; a job has one value for each key")
    return chosen


def act_on_labels(
    client: Client,
    action: str,
    labels: dict[str, str],
    *,
    dry_run: bool,
    json: bool,
    **values: Any,
) -> None:
    """Apply an action to all jobs with these labels, or list them, and print each.

    Raises:
        Exit: a job could not be changed.
    """
    found = client.act_on_jobs(action, labels, dry_run=dry_run, **values)
    if json:
        print_json(found)
    elif dry_run:
        _print_plan(found, action)
    else:
        _print_lines(found, action)
    if not found.items:
        _report_none(client, labels, action)
    if any(job.error for job in found.items):
        raise typer.Exit(FAILED)


def _print_plan(found: BatchView, action: str) -> None:
    for job in found.items:
        typer.echo(f"would {action} {job.name} ({job.id}), which is {job.status}")
    if found.more:
        typer.echo("accordion: there are more", err=True)


def _print_lines(found: BatchView, action: str) -> None:
    states = {"archive": "archived", "unarchive": "not archived", "delete": "deleted"}
    states |= {"change": "changed", "resize": "resized"}
    for job in found.items:
        state = job.status if job.error else states.get(action, job.status)
        typer.echo(f"{job.name} ({job.id}) is {state}{f': {job.error}' if job.error else ''}")
    if found.more:
        typer.echo("accordion: there are more; repeat the command", err=True)


def _report_none(client: Client, labels: dict[str, str], action: str) -> None:
    """Print why a batch has no job: a label that no job has may be mistyped."""
    texts = [f"{key}:{value}" for key, value in labels.items()]
    named = f"label{'s' if len(texts) > 1 else ''} {' and '.join(texts)}"
    known = client.jobs(label=texts, archived=None, limit=1).items
    why = f"no job to {action} is left among those with the {named}"
    typer.echo(f"accordion: {why if known else f'no job has the {named}'}", err=True)
