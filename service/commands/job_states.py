"""`cancel`, `pause`, `resume` and `retry`: commands that stop and continue jobs; `archive` and
`unarchive`, for those that have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import (
    FAILED,
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from service.commands.completion import complete_job, complete_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.batch_schemas import BatchView
    from service.api.schemas import JobView
    from service.client import Client

_OptionalJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="job id, id prefix or name; if several match, the unfinished one",
        autocompletion=complete_job,
    ),
]
_LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY:VALUE",
        help="in place of JOB, all unfinished jobs with this label; may be repeated",
        autocompletion=complete_label,
    ),
]
_OptionalJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...", help="job ids, id prefixes or names", autocompletion=complete_job
    ),
]
_EndedLabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY:VALUE",
        help="in place of JOB, all ended jobs with this label; may be repeated",
        autocompletion=complete_label,
    ),
]
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="with --label, list the jobs and change nothing")
]


def cancel(
    job: _OptionalJob = None,
    *,
    labels: _LabelsOption = None,
    dry_run: _DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel a job, or all with some labels: the workers save a checkpoint and stop. A LOST guest
    run ends at once.
    """
    chosen = _choose_jobs(job, labels, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.cancel, chosen, dry_run=dry_run, json=json)


def pause(
    job: _OptionalJob = None,
    *,
    labels: _LabelsOption = None,
    dry_run: _DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Pause a job, or all with some labels: the workers save a checkpoint and stop; 'accordion
    resume' continues them.
    """
    chosen = _choose_jobs(job, labels, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.pause, chosen, dry_run=dry_run, json=json)


def resume(
    job: _OptionalJob = None,
    *,
    labels: _LabelsOption = None,
    dry_run: _DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Resume a paused job, or all with some labels, from the checkpoint as soon as there is
    capacity.
    """
    chosen = _choose_jobs(job, labels, dry_run=dry_run)
    with connect_client(url) as client:
        _act_on_chosen(client, client.resume, chosen, dry_run=dry_run, json=json)


def retry(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Retry a job that failed or was cancelled, from its newest checkpoint."""
    with connect_client(url) as client:
        _print_job(client.retry(client.find(job).id), json=json)


def archive(
    jobs: _OptionalJobs = None,
    *,
    labels: _EndedLabelsOption = None,
    dry_run: _DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Archive ended jobs, or all with some labels: 'accordion list' leaves them out. They are kept
    until ACCORDION_JOB_RETENTION_S deletes them.
    """
    chosen = _choose_several(jobs, labels, dry_run=dry_run)
    with connect_client(url) as client:
        if isinstance(chosen, dict):
            _act_on_chosen(client, client.archive, chosen, dry_run=dry_run, json=json)
        else:
            found = [client.find(job) for job in chosen]
            _act_on_each(client.archive, found, json=json)


def unarchive(
    jobs: _OptionalJobs = None,
    *,
    labels: _EndedLabelsOption = None,
    dry_run: _DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Unarchive jobs, or all with some labels: 'accordion list' shows them again."""
    chosen = _choose_several(jobs, labels, dry_run=dry_run)
    with connect_client(url) as client:
        if isinstance(chosen, dict):
            _act_on_chosen(client, client.unarchive, chosen, dry_run=dry_run, json=json)
        else:
            found = [client.find(job, archived=True) for job in chosen]
            _act_on_each(client.unarchive, found, json=json)


def _choose_several(
    jobs: list[str] | None, labels: list[str] | None, *, dry_run: bool
) -> list[str] | dict[str, str]:
    """Return the jobs, or the labels of the jobs, that a command is for.

    Raises:
        BadParameter: neither or both are given, or a dry run is asked for named jobs.
        SettingsError: a label has another form.
    """
    first = jobs[0] if jobs else None
    chosen = _choose_jobs(first, labels, dry_run=dry_run)
    return chosen if isinstance(chosen, dict) else list(jobs or [])


def _choose_jobs(
    job: str | None, labels: list[str] | None, *, dry_run: bool
) -> str | dict[str, str]:
    """Return the job, or the labels of the jobs, that a command is for.

    Raises:
        BadParameter: neither or both are given, or a dry run is asked for one job.
        SettingsError: a label has another form.
    """
    from service.errors import SettingsError

    if (job is None) == (not labels):
        raise typer.BadParameter("give either JOB or --label")
    if job is not None:
        if dry_run:
            raise typer.BadParameter("--dry-run is for --label; 'accordion show' shows one job")
        return job
    chosen: dict[str, str] = {}
    for text in labels or []:
        key, _, value = text.partition(":")
        if not key or not value:
            raise SettingsError(f"--label {text!r} is not of the form key:value")
        if chosen.setdefault(key, value) != value:
            raise SettingsError(f"--label {key} is given twice; a job has one value for each key")
    return chosen


def _act_on_chosen(
    client: Client,
    act: Callable[[str], JobView],
    chosen: str | dict[str, str],
    *,
    dry_run: bool,
    json: bool,
) -> None:
    """Apply a method of the client to one job, or its action to all jobs with some labels."""
    if isinstance(chosen, str):
        _print_job(act(client.find(chosen).id), json=json)
    else:
        found = client.act_on_jobs(act.__name__, chosen, dry_run=dry_run)
        if json:
            print_json(found)
        elif dry_run:
            _print_plan(found, act.__name__)
        else:
            _print_lines(found, act.__name__)
        if not found.items:
            _report_none(client, chosen, act.__name__)
        if any(job.error for job in found.items):
            raise typer.Exit(FAILED)


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


def _print_plan(found: BatchView, action: str) -> None:
    for job in found.items:
        typer.echo(f"would {action} {job.name} ({job.id}), which is {job.status}")
    if found.more:
        typer.echo("accordion: there are more", err=True)


def _print_lines(found: BatchView, action: str) -> None:
    states = {"archive": "archived", "unarchive": "not archived"}
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
