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
)
from accordion_client.commands.filters import FilterOption, FilterOptions, describe_unknown_user
from accordion_client.commands.paging import (
    CursorOption,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from accordion_client.commands.table_columns import MIN_WRAPPED_WIDTH, drop_columns
from accordion_service.schemas.queries import JobQuery

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


_FILTERS = FilterOptions(
    JobQuery,
    name=FilterOption(name="--exact-name"),
    id=FilterOption(metavar="START"),
    label=FilterOption(metavar="KEY:VALUE", complete=complete_label),
    owner=FilterOption(metavar="USER", complete=complete_user),
    name_prefix=FilterOption(name="--name", metavar="START", complete=complete_job),
    desired=FilterOption(metavar="STATE"),
    cloned_from=FilterOption(
        metavar="JOB",
        help="only clones of this job; once it is deleted, give its whole id",
        complete=complete_job,
    ),
)


@_FILTERS.add_to
def list_jobs(
    *,
    archived: Annotated[
        bool, typer.Option("--archived", help="only archived jobs, which are left out otherwise")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="archived jobs as well")] = False,
    limit: LimitOption = 20,
    cursor: CursorOption = None,
    url: UrlOption = "",
    json: JsonOption = False,
    **filters: Any,
) -> None:
    """List jobs, newest first, that match all filters.

    Example: accordion list --method powersgd --ended-after 2027-01-31
    """
    if archived and all_:
        raise typer.BadParameter("give either --archived or --all")
    chosen = _FILTERS.parse(filters, without="to list all jobs")
    chosen["archived"] = None if all_ else archived
    with connect_client(url) as client:
        if "cloned_from" in chosen:
            chosen["cloned_from"] = find_job_id(client, chosen["cloned_from"])
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
        unknown = describe_unknown_user(client, chosen.get("owner"))
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
