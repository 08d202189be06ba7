"""`audit`: who changed what."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    find_to_read,
)
from accordion_client.commands.completion import (
    complete_job,
    complete_token,
    complete_user,
)
from accordion_client.commands.filters import FilterOption, FilterOptions, describe_unknown_user
from accordion_client.commands.paging import (
    CURSOR_HELP,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from accordion_client.commands.table_columns import MIN_WRAPPED_WIDTH, drop_columns
from accordion_client.commands.token_ids import find_token_id
from accordion_service.schemas.format import format_time
from accordion_service.schemas.queries import AuditQuery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from accordion_client import Client
    from accordion_service.schemas.accounts import AuditEntry

_LESS_IMPORTANT = ("REQUEST", "TOKEN")
"""Columns that a narrow terminal does without, the first of these first."""
_WRAPPED = "CHANGE"
_PARTS = {
    "user": "by the user {!r}",
    "token_id": "with the token {}",
    "request_id": "by the request {}",
    "subject": "of {!r}",
}
"""Filters whose values may be mistyped, and how they are called."""


_FILTERS = FilterOptions(
    AuditQuery,
    user=FilterOption(metavar="NAME", complete=complete_user),
    subject=FilterOption(metavar="ID"),
    token_id=FilterOption(
        name="--token",
        metavar="ID",
        help="only changes with this token: its ID, or the token, of which only the ID is sent",
        complete=complete_token,
    ),
    request_id=FilterOption(name="--request", metavar="ID"),
)


@_FILTERS.add_to
def audit(
    *,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="only changes of this job",
            autocompletion=complete_job,
        ),
    ] = None,
    limit: LimitOption = 50,
    cursor: Annotated[
        int | None, typer.Option("--cursor", metavar="CURSOR", help=CURSOR_HELP)
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
    **filters: Any,
) -> None:
    """List the changes that users made, newest first, that match all filters.

    The tokens and requests of the changes are shown if the terminal is wide enough, and by --json.

    Example: accordion audit --user ada --time-after 2027-01-31
    """
    if job is not None and filters["subject"] is not None:
        raise typer.BadParameter("give either --job or --subject")
    chosen = _FILTERS.parse(filters, without="to list all changes")
    if "token_id" in chosen:
        chosen["token_id"] = find_token_id(chosen["token_id"])
    with connect_client(url) as client:
        if job is not None:
            chosen["subject"] = find_to_read(client, job).id
        found = PagedItems(
            lambda size, after: client.audit(**chosen, limit=size, cursor=after),
            limit=limit,
            cursor=cursor,
        )
        if json:
            print_json_list(found)
            return
        _print_entries(client, found, chosen, by_job=job is not None)


def _print_entries(
    client: Client, found: PagedItems[AuditEntry], chosen: Mapping[str, Any], *, by_job: bool
) -> None:
    entries = list(found)
    if not entries:
        unknown = describe_unknown_user(client, chosen.get("user"))
        typer.echo(
            f"no change matches{unknown or _describe_unknown(client, chosen, by_job=by_job)}"
        )
        return
    out = create_console()
    out.print(_tabulate_entries(entries, out.width))
    report_more("entries", found)


def _describe_unknown(client: Client, chosen: Mapping[str, Any], *, by_job: bool) -> str:
    """Return which of the values that were asked for the audit log does not have at all, to follow
    that nothing matches.
    """
    asked = {name: text for name, text in _PARTS.items() if name in chosen}
    missing = {
        name: text.format(chosen[name])
        for name, text in asked.items()
        if not client.audit(**{name: chosen[name]}, limit=1).items
    }
    if not missing:
        return ""
    names_subject = "subject" in missing and not by_job
    hint = f"; a job is named by --job {quote(chosen['subject'])}" if names_subject else ""
    return f"; the audit log has no change {' or '.join(missing.values())}{hint}"


def _tabulate_entries(entries: Sequence[AuditEntry], width: int) -> Table:
    """Build the table of changes, without the columns that a terminal of this width has no room
    for.
    """
    rows = [_list_cells(entry) for entry in entries]
    shown = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    shown[_WRAPPED] = min(shown[_WRAPPED], MIN_WRAPPED_WIDTH)
    columns = drop_columns(shown, _LESS_IMPORTANT, width)
    table = create_table(*columns)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _list_cells(entry: AuditEntry) -> dict[str, str]:
    """Return what the table has about one change, by column."""
    name = entry.subject_name
    return {
        "TIME": format_time(entry.time),
        "USER": entry.user,
        "TOKEN": entry.token_id or "-",
        "REQUEST": entry.request_id or "-",
        "ACTION": entry.action,
        "SUBJECT": f"{name} ({entry.subject})" if name else entry.subject,
        "CHANGE": _describe_change(entry),
    }


def _describe_change(entry: AuditEntry) -> str:
    """Return what changed: values that are only before or after the change, or differ."""
    before, after = entry.before or {}, entry.after or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(
        f"{name}: {before[name]} → {after[name]}"
        if name in before and name in after
        else f"{name}: {after.get(name, before.get(name))}"
        for name in names
    )
