"""`whoami`, `user` and `token`: who may use the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)
from accordion_client.commands.completion import complete_token, complete_user, complete_words
from accordion_client.commands.token_ids import find_token_id
from accordion_service.domain.access import Role, Scope
from accordion_service.schemas.format import format_time

if TYPE_CHECKING:
    from accordion_service.schemas.accounts import TokenView

_ROLES = "viewer, editor, operator or admin"
_NAME_HELP = "name of the user"
_complete_role = complete_words(*Role)


def whoami(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """Show who you are, and what your token allows."""
    with connect_client(url) as client:
        found, at = client.caller(), client.url
    if json:
        print_json(found)
        return
    until = f", until {format_time(found.expires_at)}" if found.expires_at else ""
    typer.echo(f"{found.user} at {at} ({', '.join(found.scopes)}{until})")


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
    if role is None and disabled is None:
        raise typer.BadParameter("nothing to change; give --role, --disable or --enable")
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
        str, typer.Option("--label", "--name", metavar="TEXT", help="what the token is for")
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
        float | None,
        typer.Option(
            "--days",
            metavar="DAYS",
            min=0,
            help="until it expires; 0 for never (default: 90, or as long as your own token)",
        ),
    ] = None,
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
        until_days = ... if days is None else days or None
        made = client.add_token(label, scopes=scopes, days=until_days, user=user)
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
        may_list_all = user is None and not everyone and Scope.ADMIN in client.caller().scopes
    table = create_table("USER", "ID", "LABEL", "SCOPES", "EXPIRES", "LAST USED", "REVOKED")
    for token in found:
        scopes = ", ".join(token.scopes)
        table.add_row(token.user, token.id, token.label, scopes, *_format_times(token))
    create_console().print(table)
    if may_list_all:
        typer.echo("these are your tokens; --all lists those of all users, --user NAME one user's")


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
    token_id = find_token_id(token)
    with connect_client(url) as client:
        found = client.revoke_token(token_id)
    if json:
        print_json(found)
    else:
        typer.echo(f"token {found.id} of {found.user} ({found.label}) is revoked")


def _format_times(token: TokenView) -> tuple[str, str, str]:
    return (
        format_time(token.expires_at) or "never",
        format_time(token.used_at) or "never",
        format_time(token.revoked_at),
    )
