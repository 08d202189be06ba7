"""`submit`, `clone` and `list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import (
    ChangesOption,
    JobArgument,
    JsonOption,
    SpecArgument,
    UrlOption,
    connect_client,
    create_console,
    find_to_read,
    print_json,
)
from service.commands.completion import (
    complete_job,
    complete_label,
    complete_user,
    complete_words,
)
from service.commands.paging import (
    CursorOption,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from service.domain.jobs import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from service.api.schemas import JobView, ProgressView
    from service.api.spec_schemas import DryRun

ID_SHOWN = 13
"""Characters of an id in tables: its timestamp in milliseconds, enough to identify a job."""
_LESS_IMPORTANT = ("CREATED", "METRICS", "LOSS", "KIND", "OWNER", "EPOCHS", "WORKERS")
"""Columns that a narrow terminal does without, the first of these first."""
_COLUMNS = (
    *("ID", "NAME", "OWNER", "KIND", "STATUS", "EPOCHS", "WORKERS", "LOSS", "METRICS", "CREATED"),
    "WHY",
)
_WRAPPED = "WHY"
_GAP = 2
"""Spaces between two columns."""
_MIN_WRAPPED_WIDTH = 40
"""Minimum width of the reason, in characters; columns are left out to make room for it."""


def submit(
    file: SpecArgument,
    *,
    changes: ChangesOption = None,
    code: Annotated[
        str,
        typer.Option(
            "--code",
            metavar="DIRECTORY",
            help="folder or zip file of your own modules (default: `code` in the spec)",
        ),
    ] = "",
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="watch the job until it ends")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="store nothing; show the complete spec, and whether the job would wait",
        ),
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Submit a job.

    Example: accordion submit deploy/jobs/digits.yaml --set training.epochs=5
    """
    from uuid import uuid4

    from service.commands.pack import pack_code
    from service.commands.spec_file import read_spec
    from service.commands.watch import check_may_watch, follow_to_exit_code

    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file, code)
    with connect_client(url) as client:
        if follow_:
            check_may_watch(client)
        if archive is not None:
            spec["code"] = client.upload(archive).sha256
        if dry_run:
            _show_dry_run(client.dry_run(spec), json=json)
            return
        forecast = None if json else client.dry_run(spec)
        job = client.submit(spec, idempotency_key=str(uuid4()))
        if forecast is not None and forecast.would_wait:
            typer.echo(f"accordion: {job.name} would wait: {forecast.message}", err=True)
        if json:
            print_json(job, indent=None if follow_ else 2)
        else:
            typer.echo(
                f"{job.name} is {job.status} as {job.id}; watch it with: accordion watch {job.id}"
            )
        if follow_:
            raise typer.Exit(follow_to_exit_code(client, job, json=json))


def clone(
    job: JobArgument,
    *,
    changes: ChangesOption = None,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="watch the new job until it ends")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Submit a new job with the spec of another one. It starts from the beginning.

    Example: accordion clone digits --set training.epochs=5 --set compression=null
    """
    from uuid import uuid4

    from service.commands.spec_file import set_value
    from service.commands.watch import check_may_watch, follow_to_exit_code

    patch: dict[str, Any] = {}
    for change in changes or []:
        set_value(patch, change)
    with connect_client(url) as client:
        if follow_:
            check_may_watch(client)
        known = find_to_read(client, job)
        made = client.clone(known.id, patch, idempotency_key=str(uuid4()))
        if json:
            print_json(made, indent=None if follow_ else 2)
        else:
            typer.echo(f"{made.name} is {made.status} as {made.id}, a clone of {known.id}")
        if follow_:
            raise typer.Exit(follow_to_exit_code(client, made, json=json))


def list_jobs(
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="only jobs with this status, such as RUNNING; may be repeated",
            autocompletion=complete_words(*Status),
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY:VALUE",
            help="only jobs with this label; may be repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="START",
            help="only jobs whose name starts with this",
            autocompletion=complete_job,
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="USER",
            help="only jobs of this user",
            autocompletion=complete_user,
        ),
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="only archived jobs, which are left out otherwise")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="archived jobs as well")] = False,
    limit: LimitOption = 20,
    cursor: CursorOption = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    if archived and all_:
        raise typer.BadParameter("give either --archived or --all")
    chosen: dict[str, Any] = {
        "status": [one.upper() for one in status or []],
        "name_prefix": name,
        "label": label or [],
        "owner": owner,
        "archived": None if all_ else archived,
    }
    with connect_client(url) as client:
        found = PagedItems(
            lambda size, after: client.jobs(**chosen, limit=size, cursor=after),
            limit=limit,
            cursor=cursor,
        )
        if json:
            print_json_list(found)
            return
        out = create_console()
        out.print(_job_table(found, out.width))
    report_more("jobs", found)


def _show_dry_run(answer: DryRun, *, json: bool) -> None:
    import yaml

    if json:
        print_json(answer)
        return
    typer.echo(yaml.safe_dump(answer.spec.model_dump(mode="json"), sort_keys=False).rstrip())
    verdict = "would wait" if answer.would_wait else "would start at once"
    typer.echo(f"# {verdict}{f': {answer.message}' if answer.message else ''}")


def _job_table(jobs: Iterable[JobView], width: int) -> Table:
    """Build the table of jobs, without the columns that a terminal of this width has no room for.

    Names and reasons are wrapped rather than cut.
    """
    from rich.table import Table

    rows = [_list_cells(job) for job in jobs]
    shown = {
        column: max(map(len, [column, *(row[column] for row in rows)]))
        for column in _COLUMNS
        if _tells_jobs_apart(column, {row[column] for row in rows})
    }
    shown[_WRAPPED] = min(shown[_WRAPPED], _MIN_WRAPPED_WIDTH)
    for column in _LESS_IMPORTANT:
        if sum(shown.values()) + _GAP * (len(shown) - 1) > width:
            shown.pop(column, None)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        table.add_column(column, no_wrap=column not in {"NAME", _WRAPPED}, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    return table


def _tells_jobs_apart(column: str, cells: set[str]) -> bool:
    match column:
        case "OWNER":
            return len(cells - {"-"}) > 1
        case "KIND":
            return bool(cells - {"job"})
    return True


def _list_cells(job: JobView) -> dict[str, str]:
    """Return what the table has about one job, by column."""
    from service.commands.format import format_metrics, format_number

    now = job.progress
    return {
        "ID": job.id[:ID_SHOWN],
        "NAME": job.name,
        "OWNER": job.owner or "-",
        "KIND": job.kind.value,
        "STATUS": job.status.value,
        "EPOCHS": _format_epochs(now) if now else "-",
        "WORKERS": _format_workers(job),
        "LOSS": format_number(now.loss) if now else "-",
        "METRICS": format_metrics(job.metrics),
        "CREATED": f"{job.created_at:%Y-%m-%d %H:%M}",
        "WHY": job.message or job.reason.value,
    }


def _format_epochs(now: ProgressView) -> str:
    return str(now.epoch) if now.epochs is None else f"{now.epoch} of {now.epochs}"


def _format_workers(job: JobView) -> str:
    if job.workers:
        return f"{job.world_size} of {job.workers}"
    return str(job.world_size) if job.world_size else "-"
