"""`backup`, `restore` and `move-database`: copies of the service's state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.cli_support import JsonOption, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="new file, such as accordion.tar.gz")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Write the database and uploaded code to one file. The service may run meanwhile; checkpoints
    stay on their storage.

    Uses the same ACCORDION_HOME and ACCORDION_DATABASE_URL as the service, not its URL. The file
    holds everybody's code and the digests of their tokens; only you can read it.
    """
    from service.backup import write_backup
    from service.settings import load_settings

    contents = write_backup(load_settings(), file, time.time())
    if json:
        print_json(contents)
        return
    typer.echo(f"{file}: {_describe_rows(contents.rows)}, {len(contents.code)} uploads of code")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="file that 'backup' wrote")],
    *,
    json: JsonOption = False,
) -> None:
    """Restore a backup to a stopped service whose database is empty, SQLite or PostgreSQL.

    The service then continues jobs that ran at the time of the backup, from their checkpoints. What
    happened after it is not known to the service.
    """
    from service.backup import restore_backup
    from service.settings import load_settings

    contents = restore_backup(load_settings(), file, time.time())
    if json:
        print_json(contents)
        return
    made = f"{contents.created_at.astimezone():%Y-%m-%d %H:%M}"
    typer.echo(
        f"restored the state of {made}: {_describe_rows(contents.rows)}, {len(contents.code)}"
        " uploads of code"
    )


def move_database(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            envvar="ACCORDION_TARGET_DATABASE_URL",
            help="empty database, such as postgresql://accordion@host/accordion",
        ),
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Copy the database of a stopped service to another one, such as from SQLite to PostgreSQL.

    The source stays as it is. Then set ACCORDION_DATABASE_URL to the new one.
    """
    from service.backup import move_database as move
    from service.settings import load_settings
    from service.store.copying import hide_password

    settings = load_settings()
    url = load_settings(database_url=target).database
    rows = move(settings, url, time.time())
    if json:
        print_json({"rows": rows})
        return
    for table, count in rows.items():
        typer.echo(f"{table:<20} {count:>10}")
    typer.echo(f"all rows arrived in {hide_password(url)}")


def _describe_rows(rows: Mapping[str, int]) -> str:
    shown = {"jobs": "jobs", "users": "users", "events": "events"}
    named = ", ".join(f"{rows[table]} {name}" for table, name in shown.items())
    return f"{sum(rows.values())} rows ({named})"
