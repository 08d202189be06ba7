"""`secret`: values that jobs get in environment variables and that nobody can read back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)
from accordion_client.commands.completion import complete_secret

_NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="name of the secret", autocompletion=complete_secret),
]
_UNREADABLE = "no: its key was lost or replaced; set the secret again, or put the key back"


def set_secret(
    name: _NameArgument,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="file with the value (default: ask for it)"),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="make a new key if that of the service is lost; only for admins"
        ),
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Set one of your secrets, which replaces its previous value.

    The value is read from FILE, from standard input, or without echo from the terminal; a line
    break at its end is left out. A job refers to it as env: {HF_TOKEN: {secret: NAME}}.

    With --force, secrets that were encrypted with a lost key are given up: they must be set again.
    """
    value = _read_value(file)
    if not value:
        raise typer.BadParameter("the value is empty; give one, or use 'accordion secret remove'")
    with connect_client(url) as client:
        secret = client.set_secret(name, value, force=force)
    if json:
        print_json(secret)
    else:
        typer.echo(f"secret {secret.name} is set; jobs refer to it as {{secret: {secret.name}}}")


def list_secrets(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List your secrets, without their values, and whether the service can read them: those of a
    lost key must be set again.
    """
    with connect_client(url) as client:
        found = client.secrets()
    if json:
        print_json(found)
        return
    table = create_table("NAME", "SET", "READABLE")
    for secret in found.items:
        set_at = secret.set_at.astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(secret.name, set_at, "yes" if secret.readable else _UNREADABLE)
    create_console().print(table)


def remove_secret(
    name: _NameArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="remove it although jobs or their loggers need it")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Remove one of your secrets, unless unfinished jobs of yours, or loggers that still send, need
    it.

    With --force, workers that run keep its value, and attempts and loggers that start later fail.
    """
    with connect_client(url) as client:
        secret = client.remove_secret(name, force=force)
    if json:
        print_json(secret)
    else:
        typer.echo(f"removed secret {secret.name}")


def _read_value(file: Path | None) -> str:
    """Return the value without the line break at its end."""
    if file is not None:
        try:
            text = file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise typer.BadParameter(f"{file} cannot be read ({reason})") from error
    elif sys.stdin.isatty():
        text = typer.prompt("value", hide_input=True)
    else:
        text = sys.stdin.read()
    return text.removesuffix("\n").removesuffix("\r")
