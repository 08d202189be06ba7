"""`resize` and `change`: commands that change jobs; `cancel`, `pause`, `resume` and `retry`, which
stop and continue them; `archive` and `unarchive`, for those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.batches import (
    BatchOwnerOption,
    DryRunOption,
    EndedLabelsOption,
    JobBatch,
    LabelsOption,
    OptionalJob,
    act_on_batch,
    choose_batch,
    create_label_option,
)
from accordion_client.commands.cli_support import (
    FAILED,
    JsonOption,
    UrlOption,
    connect_client,
    parse_whole,
    print_json,
    print_line,
)
from accordion_client.commands.completion import complete_job, complete_label

if TYPE_CHECKING:
    from accordion_client import Client
    from accordion_service.schemas.jobs import JobView

_OptionalJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...", help="job ids, id prefixes or names", autocompletion=complete_job
    ),
]


def resize(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] MIN MAX",
            help="job id, id prefix or name; fewest workers, for which the job waits; and most"
            " workers",
            autocompletion=complete_job,
        ),
    ],
    *,
    labels: LabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Change the number of workers that a job, or all with some labels, may have. It changes at a
    step boundary; no step is lost.

    Example: accordion resize digits 1 4
    """
    from accordion_service.schemas.format import format_workers

    *jobs, least, most = _parse_limits(places)
    if len(jobs) > 1:
        raise typer.BadParameter(f"give at most one JOB, not {len(jobs)}")
    chosen = choose_batch(str(jobs[0]) if jobs else None, labels, owner, dry_run=dry_run)
    limits = int(least), int(most)
    with connect_client(url) as client:
        if not isinstance(chosen, str):
            act_on_batch(client, "resize", chosen, dry_run=dry_run, json=json, resize=limits)
            return
        found = client.resize(client.find(chosen).id, *limits)
    if json:
        print_json(found)
    else:
        typer.echo(f"{found.name} ({found.id}) is {found.status}: {format_workers(found)}")


def _parse_limits(places: list[str]) -> list[str]:
    """Check that the last two arguments are numbers of workers.

    Raises:
        BadParameter: they are not.
    """
    limits = places[-2:]
    if len(limits) < 2 or not all(parse_whole(text) for text in limits):
        raise typer.BadParameter(
            f"MIN and MAX are {' '.join(limits)!r}; give two whole numbers, at least 1, as in"
            " 'accordion resize JOB 1 4'"
        )
    return places


def change(
    job: OptionalJob = None,
    *,
    chosen_labels: Annotated[
        list[str] | None,
        typer.Option(
            "--with-label",
            metavar="KEY:VALUE",
            help="in place of JOB, all jobs with this label; may be repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="new name")] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="NUMBER",
            min=0,
            max=100,
            help="new place in the queue; larger starts first",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY:VALUE",
            help="set a label, or remove it with KEY: and no value; may be repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    owner: BatchOwnerOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="with --with-label, list the jobs and change nothing")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Change the name, labels or priority of a job, a guest run, or an ended job; or labels and
    priority of all jobs with some labels.

    Example: accordion change --with-label sweep:lr --priority 20
    """
    changed = dict(_parse_label(text) for text in labels or [])
    if name is None and priority is None and not changed:
        raise typer.BadParameter("nothing to change; give --name, --priority or --label")
    chosen = choose_batch(job, chosen_labels, owner, dry_run=dry_run, option="--with-label")
    with connect_client(url) as client:
        if isinstance(chosen, JobBatch):
            if name is not None:
                raise typer.BadParameter("--name is for one job; give JOB")
            values = {"labels": changed, "priority": priority}
            act_on_batch(client, "change", chosen, dry_run=dry_run, json=json, change=values)
            return
        found = client.change(client.find(chosen).id, name=name, labels=changed, priority=priority)
    if json:
        print_json(found)
        return
    shown = ", ".join(f"{key}:{value}" for key, value in found.labels.items()) or "no labels"
    typer.echo(f"{found.name} ({found.id}) has priority {found.priority}, {shown}")


def _parse_label(text: str) -> tuple[str, str | None]:
    """Parse `key:value`, or `key:` for a label to remove.

    Raises:
        SettingsError: it has another form.
    """
    from accordion_service.errors import SettingsError

    key, colon, value = text.partition(":")
    if not key or not colon:
        raise SettingsError(
            f"--label {text!r} is not of the form key:value, or key: to remove the label"
        )
    return key, value or None


def _create_command(action: str, text: str, *, labels: Any = LabelsOption) -> Callable[..., None]:
    """Create the command that applies a method of the client to jobs.

    Args:
        action: name of the method and of the command.
        text: help of the command.
        labels: type of its option `--label`, which says of which jobs it chooses some.
    """

    def command(
        jobs: _OptionalJobs = None,
        *,
        labels: list[str] | None = None,
        owner: BatchOwnerOption = None,
        dry_run: DryRunOption = False,
        url: UrlOption = "",
        json: JsonOption = False,
    ) -> None:
        chosen = _choose_several(jobs, labels, owner, dry_run=dry_run)
        with connect_client(url) as client:
            if isinstance(chosen, JobBatch):
                act_on_batch(client, action, chosen, dry_run=dry_run, json=json)
            else:
                _act_on_named(client, action, chosen, json=json)

    command.__name__, command.__doc__ = action, text
    command.__annotations__["labels"] = labels
    return command


_RetriedLabelsOption = Annotated[
    list[str] | None, create_label_option("jobs with this label that failed or were cancelled")
]

cancel = _create_command(
    "cancel",
    """Cancel jobs, or all with some labels: the workers save a checkpoint and stop. A LOST guest
    run ends at once.
    """,
)
pause = _create_command(
    "pause",
    """Pause jobs, or all with some labels: the workers save a checkpoint and stop; 'accordion
    resume' continues them.
    """,
)
resume = _create_command(
    "resume",
    """Resume paused jobs, or all with some labels, from their checkpoints as soon as there is
    capacity.
    """,
)
retry = _create_command(
    "retry",
    """Retry jobs that failed or were cancelled, or all with some labels, from their newest
    checkpoints.
    """,
    labels=_RetriedLabelsOption,
)
archive = _create_command(
    "archive",
    """Archive ended jobs, or all with some labels: 'accordion list' leaves them out. They are kept
    until ACCORDION_JOB_RETENTION_S deletes them.
    """,
    labels=EndedLabelsOption,
)
unarchive = _create_command(
    "unarchive",
    "Unarchive jobs, or all with some labels: 'accordion list' shows them again.",
    labels=EndedLabelsOption,
)


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


def _act_on_named(client: Client, action: str, references: list[str], *, json: bool) -> None:
    """Apply a method of the client to jobs, and print what became of them."""
    act: Callable[[str], JobView] = getattr(client, action)
    jobs = [client.find(job, archived=action == "unarchive") for job in references]
    if action in {"archive", "unarchive"}:
        _act_on_each(act, jobs, _describe_archived, json=json)
    elif len(jobs) > 1 or not json:
        _act_on_each(act, jobs, _describe_status, json=json)
    else:
        print_json(act(jobs[0].id))


def _act_on_each(
    act: Callable[[str], JobView],
    jobs: list[JobView],
    describe: Callable[[JobView], str],
    *,
    json: bool,
) -> None:
    """Apply a method of the client to jobs one by one, and print what became of each, also if the
    service is lost in between.

    Raises:
        APIStatusError: the only job could not be changed.
        Exit: one of several could not be changed.
    """
    named = list({job.id: job for job in jobs}.values())
    items: list[dict[str, Any]] = []
    try:
        for job in named:
            changed, error = _try_to_act(act, job, alone=len(named) == 1)
            items.append(changed.model_dump(mode="json") | {"error": error})
            if error is not None:
                print_line(f"accordion: {job.name} ({job.id}): {error}", err=True)
            elif not json:
                typer.echo(f"{changed.name} ({changed.id}) is {describe(changed)}")
    finally:
        if json:
            print_json({"items": items})
    if any(item["error"] for item in items):
        raise typer.Exit(FAILED)


def _try_to_act(
    act: Callable[[str], JobView], job: JobView, *, alone: bool
) -> tuple[JobView, str | None]:
    """Return a job after an action, or as it was with the reason why it could not be changed.

    Raises:
        APIStatusError: it could not be changed, and no other is to be.
    """
    from accordion_client import APIStatusError

    try:
        return act(job.id), None
    except APIStatusError as error:
        if alone:
            raise
        return job, str(error)


def _describe_status(job: JobView) -> str:
    return f"{job.status}{f': {job.message}' if job.message else ''}"


def _describe_archived(job: JobView) -> str:
    return "archived" if job.archived else "not archived"
