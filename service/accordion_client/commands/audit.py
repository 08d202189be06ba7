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
    complete_words,
)
from accordion_client.commands.filters import describe_unknown_user, refuse_empty
from accordion_client.commands.paging import (
    CURSOR_HELP,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from accordion_client.commands.table_columns import MIN_WRAPPED_WIDTH, drop_columns
from accordion_client.commands.time_options import create_time_option, parse_times
from accordion_client.commands.token_ids import find_token_id
from accordion_service.domain.audit import AuditAction
from accordion_service.schemas.format import format_time

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


def audit(
    *,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="only changes by this user",
            autocompletion=complete_user,
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="ID",
            help="only changes of this job, plan, token, user, secret, webhook, node or upload, or"
            " of a quota, such as 'user ada' or 'label team:vision'",
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="only changes of this job",
            autocompletion=complete_job,
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action",
            metavar="ACTION",
            help="only this one, such as job.cancelled",
            autocompletion=complete_words(*AuditAction),
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="ID",
            help="only changes with this token: its ID, or the token, of which only the ID is sent",
            autocompletion=complete_token,
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request", metavar="ID", help="only changes by the request with this ID, as in logs"
        ),
    ] = None,
    time_after: Annotated[
        str | None, create_time_option("--time-after", "only changes made at this time or later")
    ] = None,
    time_before: Annotated[
        str | None, create_time_option("--time-before", "only changes made before this time")
    ] = None,
    limit: LimitOption = 50,
    cursor: Annotated[
        int | None, typer.Option("--cursor", metavar="CURSOR", help=CURSOR_HELP)
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """List the changes that users made, newest first, that match all filters.

    The tokens and requests of the changes are shown if the terminal is wide enough, and by --json.

    Example: accordion audit --user ada --time-after 2027-01-31
    """
    if job is not None and subject is not None:
        raise typer.BadParameter("give either --job or --subject")
    chosen: dict[str, Any] = {
        "user": user,
        "subject": subject,
        "action": action,
        "token_id": token and find_token_id(token),
        "request_id": request,
        **parse_times({"time_after": time_after, "time_before": time_before}),
    }
    refuse_empty(
        chosen, {"token_id": "token", "request_id": "request"}, without="to list all changes"
    )
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
        unknown = describe_unknown_user(client, chosen["user"])
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
    asked = {name: text for name, text in _PARTS.items() if chosen[name] is not None}
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
