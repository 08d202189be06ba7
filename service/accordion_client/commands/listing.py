"""`list`: the newest jobs that match filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    find_job_id,
)
from accordion_client.commands.completion import (
    complete_job,
    complete_label,
    complete_user,
    complete_words,
)
from accordion_client.commands.filters import describe_unknown_user, refuse_empty
from accordion_client.commands.paging import (
    CursorOption,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from accordion_client.commands.table_columns import MIN_WRAPPED_WIDTH, drop_columns
from accordion_client.commands.time_options import create_time_option, parse_times
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from accordion_client import Client
    from accordion_service.schemas.jobs import JobView, ProgressView

ID_SHOWN = 13
"""Characters of an id in tables: its timestamp in milliseconds, enough to identify a job."""
_LESS_IMPORTANT = ("CREATED", "METRICS", "LOSS", "KIND", "OWNER", "EPOCHS", "WORKERS")
"""Columns that a narrow terminal does without, the first of these first."""
_COLUMNS = (
    *("ID", "NAME", "OWNER", "KIND", "STATUS", "EPOCHS", "WORKERS", "LOSS", "METRICS", "CREATED"),
    "WHY",
)
_WRAPPED = "WHY"


def _time_option(name: str, what: str) -> Any:
    return create_time_option(name, f"only jobs that {what}")


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
    exact_name: Annotated[
        str | None, typer.Option("--exact-name", metavar="NAME", help="only jobs of this name")
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="START", help="only jobs whose id starts with this"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="only submitted jobs (job), or only guest runs (guest)",
            autocompletion=complete_words(*Kind),
        ),
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option(
            "--reason",
            metavar="REASON",
            help="only jobs with this reason, such as NEVER_FITS; may be repeated",
            autocompletion=complete_words(*Reason),
        ),
    ] = None,
    desired: Annotated[
        list[str] | None,
        typer.Option(
            "--desired",
            metavar="STATE",
            help="only jobs that users want to RUN, PAUSE or CANCEL; may be repeated",
            autocompletion=complete_words(*Desired),
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", metavar="NUMBER", help="only jobs with this priority"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="NUMBER", help="only jobs that hold this many workers"),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="only jobs with this task")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="only jobs with this compression method"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="only jobs with this policy")
    ] = None,
    cloned_from: Annotated[
        str | None,
        typer.Option(
            "--cloned-from",
            metavar="JOB",
            help="only clones of this job; once it is deleted, give its whole id",
            autocompletion=complete_job,
        ),
    ] = None,
    created_after: Annotated[
        str | None, _time_option("--created-after", "were submitted at this time or later")
    ] = None,
    created_before: Annotated[
        str | None, _time_option("--created-before", "were submitted before this time")
    ] = None,
    started_after: Annotated[
        str | None, _time_option("--started-after", "started at this time or later")
    ] = None,
    started_before: Annotated[
        str | None, _time_option("--started-before", "started before this time")
    ] = None,
    ended_after: Annotated[
        str | None, _time_option("--ended-after", "ended at this time or later")
    ] = None,
    ended_before: Annotated[
        str | None, _time_option("--ended-before", "ended before this time")
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
    """List jobs, newest first, that match all filters.

    Example: accordion list --method powersgd --ended-after 2027-01-31
    """
    if archived and all_:
        raise typer.BadParameter("give either --archived or --all")
    times = {
        "created_after": created_after,
        "created_before": created_before,
        "started_after": started_after,
        "started_before": started_before,
        "ended_after": ended_after,
        "ended_before": ended_before,
    }
    chosen: dict[str, Any] = {
        "status": _upper(status),
        "name": exact_name,
        "name_prefix": name,
        "id_prefix": id_,
        "label": label or [],
        "owner": owner,
        "kind": kind,
        "reason": _upper(reason),
        "desired": _upper(desired),
        "priority": priority,
        "workers": workers,
        "task": task,
        "method": method,
        "policy": policy,
        "archived": None if all_ else archived,
        "cloned_from": cloned_from,
        **parse_times(times),
    }
    options = {"name": "exact-name", "name_prefix": "name", "id_prefix": "id"}
    refuse_empty(chosen, options, without="to list all jobs")
    with connect_client(url) as client:
        if cloned_from is not None:
            chosen["cloned_from"] = find_job_id(client, cloned_from)
        found = PagedItems(
            lambda size, after: client.jobs(**chosen, limit=size, cursor=after),
            limit=limit,
            cursor=cursor,
        )
        _print_jobs(client, found, chosen, json=json)


def _print_jobs(
    client: Client, found: PagedItems[JobView], chosen: Mapping[str, Any], *, json: bool
) -> None:
    if json:
        print_json_list(found)
        return
    jobs = list(found)
    if not jobs:
        unknown = describe_unknown_user(client, chosen["owner"])
        typer.echo(f"no job matches{unknown or _describe_archived(client, chosen)}")
        return
    out = create_console()
    out.print(_job_table(jobs, out.width))
    report_more("jobs", found)


def _describe_archived(client: Client, chosen: Mapping[str, Any]) -> str:
    """Return that only archived jobs match, to follow that nothing does; empty otherwise."""
    if chosen["archived"] is not False:
        return ""
    hidden = client.jobs(**{**chosen, "archived": True}, limit=1).items
    return "; archived ones do: give --archived" if hidden else ""


def _upper(words: list[str] | None) -> list[str]:
    return [word.upper() for word in words or []]


def _job_table(jobs: Sequence[JobView], width: int) -> Table:
    """Build the table of jobs, without the columns that a terminal of this width has no room for.

    Reasons, and names longer than half of a line, are wrapped rather than cut.
    """
    from rich.table import Table

    rows = [_list_cells(job) for job in jobs]
    shown = {
        column: max(map(len, [column, *(row[column] for row in rows)]))
        for column in _COLUMNS
        if _tells_jobs_apart(column, {row[column] for row in rows})
    }
    shown[_WRAPPED] = min(shown[_WRAPPED], MIN_WRAPPED_WIDTH)
    columns = drop_columns(shown, _LESS_IMPORTANT, width)
    wrapped = {_WRAPPED, *(["NAME"] if shown["NAME"] > width // 2 else [])}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column not in wrapped, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in columns))
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
    from accordion_service.schemas.format import format_metrics, format_number

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
        "CREATED": f"{job.created_at.astimezone():%Y-%m-%d %H:%M}",
        "WHY": job.message or job.reason.value,
    }


def _format_epochs(now: ProgressView) -> str:
    return str(now.epoch) if now.epochs is None else f"{now.epoch} of {now.epochs}"


def _format_workers(job: JobView) -> str:
    if job.workers:
        return f"{job.world_size} of {job.workers}"
    return str(job.world_size) if job.world_size else "-"
