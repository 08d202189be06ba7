"""Actions of commands on all jobs with some labels, and the options that choose them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import FAILED, print_json
from accordion_client.commands.completion import complete_job, complete_label, complete_user
from accordion_service.errors import SettingsError

if TYPE_CHECKING:
    from accordion_client import Client
    from accordion_service.schemas.batches import BatchItem, BatchView

OptionalJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="job id, id prefix or name; if several match, the unfinished one",
        autocompletion=complete_job,
    ),
]


def create_label_option(which: str) -> Any:
    """Create the option for all jobs with a label in place of named ones."""
    return typer.Option(
        "--label",
        metavar="KEY:VALUE",
        help=f"in place of JOB, all {which}; may be repeated",
        autocompletion=complete_label,
    )


LabelsOption = Annotated[list[str] | None, create_label_option("unfinished jobs with this label")]
EndedLabelsOption = Annotated[list[str] | None, create_label_option("ended jobs with this label")]
BatchOwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="USER",
        help="with labels, only jobs of this user",
        autocompletion=complete_user,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="with --label, list the jobs and change nothing")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBatch:
    """The jobs that a command is for."""

    labels: dict[str, str]
    """Labels by key, all of which a job must have."""
    owner: str | None = None
    """Only jobs of this user."""
    ids: Sequence[str] | None = None
    """Only these; None for all."""


def choose_batch(
    job: str | None,
    labels: list[str] | None,
    owner: str | None,
    *,
    dry_run: bool,
    option: str = "--label",
) -> str | JobBatch:
    """Return the job or jobs that a command is for; `option` gave the labels.

    Raises:
        BadParameter: neither or both are given; a dry run or an owner is given for one job; the
            owner is empty.
        SettingsError: a label has another form.
    """
    if (job is None) == (not labels):
        raise typer.BadParameter(f"give either JOB or {option} KEY:VALUE")
    if owner == "":
        raise typer.BadParameter("--owner is empty; leave it out for the jobs of all users")
    if job is None:
        return JobBatch(labels=_parse_labels(labels or [], option), owner=owner)
    if dry_run:
        raise typer.BadParameter(f"--dry-run is for {option}; 'accordion show' shows one job")
    if owner is not None:
        raise typer.BadParameter(f"--owner is for {option}; JOB names one job already")
    return job


def _parse_labels(texts: list[str], option: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition(":")
        if not key or not value:
            raise SettingsError(f"{option} {text!r} is not of the form key:value")
        if labels.setdefault(key, value) != value:
            raise SettingsError(f"{option} {key} is given twice; a job has one value for each key")
    return labels


def read_batch(client: Client, action: str, batch: JobBatch, **more: Any) -> Iterator[BatchView]:
    """Apply an action to the jobs of a batch, and iterate over the answers of the service."""
    from accordion_service.schemas.batches import MAX_JOBS

    ids = batch.ids or ()
    starts = [0] if batch.ids is None else range(0, len(ids), MAX_JOBS)
    for start in starts:
        cursor = None
        while True:
            view = client.act_on_jobs(
                action,
                batch.labels,
                owner=batch.owner,
                ids=ids[start : start + MAX_JOBS],
                cursor=cursor,
                **more,
            )
            yield view
            cursor = view.next_cursor
            if cursor is None:
                break


def act_on_batch(
    client: Client, action: str, batch: JobBatch, *, dry_run: bool, json: bool, **values: Any
) -> None:
    """Apply an action to the jobs of a batch, or list them, and print each, also if a later request
    fails.

    Raises:
        Exit: a job could not be changed.
    """
    describe = _describe_planned if dry_run else _describe_done
    done: list[BatchItem] = []
    try:
        for view in read_batch(client, action, batch, dry_run=dry_run, **values):
            done += view.items
            has_owners = len({job.owner for job in done}) > 1
            for job in [] if json else view.items:
                named = f"{job.name} ({job.id}{_describe_owner(job) if has_owners else ''})"
                typer.echo(describe(job, named, action))
    finally:
        if json:
            print_json({"items": [job.model_dump(mode="json") for job in done]})
    if not done:
        _report_none(client, batch, action)
    if any(job.error for job in done):
        raise typer.Exit(FAILED)


def _describe_owner(job: BatchItem) -> str:
    return f", of {job.owner}" if job.owner else ", of nobody"


def _describe_planned(job: BatchItem, named: str, action: str) -> str:
    return f"would {action} {named}, which is {job.status}"


def _describe_done(job: BatchItem, named: str, action: str) -> str:
    states = {"archive": "archived", "unarchive": "not archived", "delete": "deleted"}
    states |= {"change": "changed", "resize": "resized"}
    state = job.status if job.error else states.get(action, job.status)
    return f"{named} is {state}{f': {job.error}' if job.error else ''}"


def _report_none(client: Client, batch: JobBatch, action: str) -> None:
    """Print why a batch has no job: a label that no job has may be mistyped."""
    texts = [f"{key}:{value}" for key, value in batch.labels.items()]
    named = f"label{'s' if len(texts) > 1 else ''} {' and '.join(texts)}"
    whose = f"job of {batch.owner}" if batch.owner else "job"
    known = client.jobs(label=texts, owner=batch.owner, archived=None, limit=1).items
    why = f"no {whose} to {action} is left among those with the {named}"
    typer.echo(f"accordion: {why if known else f'no {whose} has the {named}'}", err=True)
