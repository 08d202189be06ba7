"""`cancel`, `pause`, `resume` and `retry`: commands that stop and continue jobs; `archive` and
`unarchive`, for those that have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.batch_actions import (
    BatchOwnerOption,
    DryRunOption,
    EndedLabelsOption,
    JobBatch,
    LabelsOption,
    OptionalJob,
    act_on_batch,
    choose_batch,
)
from service.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from service.commands.completion import complete_job, complete_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.schemas import JobView
    from service.client import Client

_OptionalJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...", help="job ids, id prefixes or names", autocompletion=complete_job
    ),
]


def cancel(
    job: OptionalJob = None,
    *,
    labels: LabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel a job, or all with some labels: the workers save a checkpoint and stop. A LOST guest
    run ends at once.
    """
    chosen = choose_batch(job, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.cancel, chosen, dry_run=dry_run, json=json)


def pause(
    job: OptionalJob = None,
    *,
    labels: LabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Pause a job, or all with some labels: the workers save a checkpoint and stop; 'accordion
    resume' continues them.
    """
    chosen = choose_batch(job, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.pause, chosen, dry_run=dry_run, json=json)


def resume(
    job: OptionalJob = None,
    *,
    labels: LabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Resume a paused job, or all with some labels, from the checkpoint as soon as there is
    capacity.
    """
    chosen = choose_batch(job, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.resume, chosen, dry_run=dry_run, json=json)


def retry(
    job: OptionalJob = None,
    *,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY:VALUE",
            help="in place of JOB, all jobs with this label that failed or were cancelled; may be"
            " repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Retry a job that failed or was cancelled, or all with some labels, from the newest
    checkpoint.
    """
    chosen = choose_batch(job, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.retry, chosen, dry_run=dry_run, json=json)


def archive(
    jobs: _OptionalJobs = None,
    *,
    labels: EndedLabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Archive ended jobs, or all with some labels: 'accordion list' leaves them out. They are kept
    until ACCORDION_JOB_RETENTION_S deletes them.
    """
    chosen = _choose_several(jobs, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        if isinstance(chosen, JobBatch):
            _act_on_chosen(client, client.archive, chosen, dry_run=dry_run, json=json)
        else:
            found = [client.find(job) for job in chosen]
            _act_on_each(client.archive, found, json=json)


def unarchive(
    jobs: _OptionalJobs = None,
    *,
    labels: EndedLabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Unarchive jobs, or all with some labels: 'accordion list' shows them again."""
    chosen = _choose_several(jobs, labels, owner, dry_run=dry_run)
    with connect_client(url) as client:
        if isinstance(chosen, JobBatch):
            _act_on_chosen(client, client.unarchive, chosen, dry_run=dry_run, json=json)
        else:
            found = [client.find(job, archived=True) for job in chosen]
            _act_on_each(client.unarchive, found, json=json)


def _choose_several(
    jobs: list[str] | None, labels: list[str] | None, owner: str | None, *, dry_run: bool
) -> list[str] | JobBatch:
    """Return the jobs that a command is for.

    Raises:
        BadParameter: neither or both are given, or a dry run or an owner is given for named jobs.
        SettingsError: a label has another form.
    """
    first = jobs[0] if jobs else None
    chosen = choose_batch(first, labels, owner, dry_run=dry_run)
    return chosen if isinstance(chosen, JobBatch) else list(jobs or [])


def _act_on_chosen(
    client: Client,
    act: Callable[[str], JobView],
    chosen: str | JobBatch,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    """Apply a method of the client to one job, or its action to all jobs with some labels."""
    if isinstance(chosen, str):
        _print_job(act(client.find(chosen).id), json=json)
    else:
        act_on_batch(client, act.__name__, chosen, dry_run=dry_run, json=json)


def _act_on_each(act: Callable[[str], JobView], jobs: list[JobView], *, json: bool) -> None:
    """Apply a method of the client to jobs one by one, and print each that is done, also if a later
    one fails.
    """
    done: list[dict[str, Any]] = []
    try:
        for job in jobs:
            changed = act(job.id)
            done.append(changed.model_dump(mode="json"))
            if not json:
                state = "archived" if changed.archived else "not archived"
                typer.echo(f"{changed.name} ({changed.id}) is {state}")
    finally:
        if json:
            print_json({"items": done})


def _print_job(job: JobView, *, json: bool) -> None:
    if json:
        print_json(job)
    else:
        typer.echo(
            f"{job.name} ({job.id}) is {job.status}{f': {job.message}' if job.message else ''}"
        )
