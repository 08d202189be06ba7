"""`whoami`, `user`, `token` and `audit`: who may use the service, and who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    find_to_read,
    print_json,
)
from service.commands.completion import (
    complete_job,
    complete_token,
    complete_user,
    complete_words,
)
from service.commands.filters import refuse_empty
from service.commands.format import format_time
from service.commands.paging import (
    CURSOR_HELP,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from service.commands.time_options import create_time_option, parse_times
from service.domain.access import Role, Scope
from service.domain.audit_actions import AuditAction

if TYPE_CHECKING:
    from service.api.account_schemas import AuditEntry, TokenView

_ROLES = "viewer, editor, operator or admin"
_NAME_HELP = "name of the user"
_complete_role = complete_words(*Role)


def whoami(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """Show who you are, and what your token allows."""
    with connect_client(url) as client:
        found = client.caller()
    if json:
        print_json(found)
        return
    until = f", until {format_time(found.expires_at)}" if found.expires_at else ""
    typer.echo(f"{found.user} ({', '.join(found.scopes)}{until})")


def add_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_NAME_HELP)],
    *,
    role: Annotated[
        str,
        typer.Option("--role", metavar="ROLE", help=_ROLES, autocompletion=_complete_role),
    ] = "editor",
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Add a user, or an account for programs. Then create a token: accordion token new."""
    with connect_client(url) as client:
        user = client.add_user(name, role)
    if json:
        print_json(user)
    else:
        typer.echo(
            f"added {user.name} as {user.role}; next: accordion token new --user {user.name}"
        )


def change_user(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=_NAME_HELP, autocompletion=complete_user)
    ],
    *,
    role: Annotated[
        str | None,
        typer.Option(
            "--role", metavar="ROLE", help=f"new role: {_ROLES}", autocompletion=_complete_role
        ),
    ] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="refuse, or accept again, the user's tokens"),
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Change the role of a user, or disable the user. Jobs of a disabled user go on."""
    with connect_client(url) as client:
        user = client.change_user(name, role=role, disabled=disabled)
    if json:
        print_json(user)
    else:
        typer.echo(f"{user.name} is {user.role}{' and disabled' if user.disabled_at else ''}")
    if role is not None:
        typer.echo("tokens keep their scopes, as far as the new role allows them", err=True)


def list_users(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List all users."""
    with connect_client(url) as client:
        found = client.users()
    if json:
        print_json(found)
        return
    table = create_table("NAME", "ROLE", "ADDED", "DISABLED")
    for user in found.items:
        added, disabled = format_time(user.created_at), format_time(user.disabled_at)
        table.add_row(user.name, user.role, added, disabled)
    create_console().print(table)


def new_token(
    *,
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="what the token is for")
    ] = "command line",
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="what it allows: read, read:all, submit, override, write:all, tokens, metrics,"
            " audit or admin; may be repeated (default: all that the role allows)",
            autocompletion=complete_words(*Scope),
        ),
    ] = None,
    days: Annotated[
        float,
        typer.Option("--days", metavar="DAYS", min=0, help="until it expires; 0 for never"),
    ] = 90.0,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="user of the token (default: you)",
            autocompletion=complete_user,
        ),
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Create a token and print it; it cannot be shown again.

    Use it in ACCORDION_TOKEN, or write it to a file that ACCORDION_TOKEN_FILE names.
    """
    with connect_client(url) as client:
        made = client.add_token(label, scopes=scopes, days=days or None, user=user)
    if json:
        print_json(made)
        return
    until = f"until {format_time(made.expires_at)}" if made.expires_at else "without expiry"
    typer.echo(f"token {made.id} of {made.user} for {', '.join(made.scopes)}, {until}", err=True)
    typer.echo(made.token)


def list_tokens(
    *,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="whose tokens (default: yours)",
            autocompletion=complete_user,
        ),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="tokens of all users; needs the scope admin")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """List tokens, with revoked and expired ones."""
    if everyone and user is not None:
        raise typer.BadParameter("give either --user or --all")
    with connect_client(url) as client:
        users = [one.name for one in client.users().items] if everyone else [user]
        found = [token for name in users for token in client.tokens(name).items]
    if json:
        print_json({"items": [token.model_dump(mode="json") for token in found]})
        return
    table = create_table("USER", "ID", "LABEL", "SCOPES", "EXPIRES", "LAST USED", "REVOKED")
    for token in found:
        scopes = ", ".join(token.scopes)
        table.add_row(token.user, token.id, token.label, scopes, *_format_times(token))
    create_console().print(table)


def revoke_token(
    token: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="ID of the token, or the token itself",
            autocompletion=complete_token,
        ),
    ],
    *,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Revoke a token, and those created with it: they are refused at once, also in browsers that
    they logged in; open streams end within seconds.
    """
    # A whole token has its ID between the underscores.
    token_id = token.split("_")[1] if token.count("_") >= 2 else token
    with connect_client(url) as client:
        found = client.revoke_token(token_id)
    if json:
        print_json(found)
    else:
        typer.echo(f"token {found.id} of {found.user} ({found.label}) is revoked")


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
            help="only changes with the token that has this ID",
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

    Example: accordion audit --user ada --time-after 2027-01-31
    """
    if job is not None and subject is not None:
        raise typer.BadParameter("give either --job or --subject")
    chosen: dict[str, Any] = {
        "user": user,
        "subject": subject,
        "action": action,
        "token_id": token,
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
        table = create_table("TIME", "USER", "ACTION", "SUBJECT", "CHANGE")
        for entry in found:
            row = (format_time(entry.time), entry.user, entry.action, entry.subject)
            table.add_row(*row, _describe_change(entry))
    create_console().print(table)
    report_more("entries", found)


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


def _format_times(token: TokenView) -> tuple[str, str, str]:
    return (
        format_time(token.expires_at) or "never",
        format_time(token.used_at) or "never",
        format_time(token.revoked_at),
    )
