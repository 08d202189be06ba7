"""`backup`, `restore` and `move-database`: copies of the service's state."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import JsonOption, print_json

if TYPE_CHECKING:
    from accordion_service.backups.backups import BackupContents
    from accordion_service.settings.settings import Settings


def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="new file, such as accordion.tar.gz")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Write the database and uploaded code to one file. The service may run meanwhile; checkpoints
    stay on their storage.

    Uses ACCORDION_HOME and ACCORDION_DATABASE_URL of the service, not its address. The file has
    everybody's code and digests of their tokens; only you can read it.

    Not in it: the storage, files of loggers, settings, tokens of the home directory, and the key
    that decrypts secrets. Copy that key as well; without it, secrets must be set again.
    """
    from accordion_service.backups.backups import write_backup
    from accordion_service.settings.settings import load_settings

    settings = load_settings()
    with _clean_up_on_signals():
        contents = write_backup(settings, file, time.time())
    if json:
        print_json(contents)
    else:
        typer.echo(f"{file}: {_describe_contents(contents)}\n{_describe_omissions(settings)}")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="file that 'backup' wrote")],
    *,
    json: JsonOption = False,
) -> None:
    """Restore a backup to a stopped service whose database is empty, SQLite or PostgreSQL.

    At its next start, the service continues the unfinished jobs from their checkpoints. Other
    changes after the backup are lost: a token revoked since then is valid again.
    """
    from accordion_service.backups.backups import find_storage, restore_backup
    from accordion_service.settings.settings import load_settings

    settings = load_settings()
    with _clean_up_on_signals():
        contents = restore_backup(settings, file, time.time())
    if json:
        print_json(contents)
    else:
        made = f"{contents.created_at.astimezone():%Y-%m-%d %H:%M}"
        typer.echo(f"restored the state of {made}: {_describe_contents(contents)}")
    storage = find_storage(settings)
    if contents.storage and Path(storage) != Path(contents.storage):
        typer.echo(
            f"accordion: checkpoints are looked for in {storage}, and were in {contents.storage};"
            " copy them, or set ACCORDION_STORAGE before you start the service",
            err=True,
        )
    unreadable = _describe_unreadable(settings)
    if unreadable:
        typer.echo(f"accordion: {unreadable}", err=True)


def move_database(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="empty database, such as postgresql://accordion@host/accordion"
        ),
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Copy the database of a stopped service to another one, such as from SQLite to PostgreSQL.

    The source stays as it is. Then set ACCORDION_DATABASE_URL to the new one. Passwords are best
    kept in ~/.pgpass, since others see the URL in the list of processes.
    """
    from accordion_service.backups.backups import move_database as move
    from accordion_service.settings.settings import load_settings
    from accordion_service.store.engine.database import hide_password

    url = _check_url(target)
    rows = move(load_settings(), url, time.time())
    if json:
        print_json({"rows": rows})
        return
    for table, count in rows.items():
        typer.echo(f"{table:<20} {count:>10}")
    typer.echo(f"all rows arrived in {hide_password(url)}")


@contextmanager
def _clean_up_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that it leaves no files behind. One
    that is ignored, as SIGHUP under nohup, stays so.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_unreadable(settings: Settings) -> str:
    """Return what is wrong with the restored secrets, or why they could not be checked."""
    from sqlalchemy.exc import SQLAlchemyError

    from accordion_service.backups.secret_check import describe_unreadable
    from accordion_service.errors import StartError

    try:
        return describe_unreadable(settings)
    except (StartError, SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        return f"the secrets could not be checked ({reason}); 'accordion doctor' checks them"


def _check_url(target: str) -> str:
    """Return the URL of a database with its driver.

    Raises:
        SettingsError: it is not the URL of a database.
    """
    from accordion_service.errors import SettingsError
    from accordion_service.settings.settings import load_settings

    if not target or target.rstrip("/") in {"sqlite:", "sqlite:///:memory:"}:
        raise SettingsError(f"the URL is {target!r}; give that of a database")
    try:
        return load_settings(database_url=target).database
    except SettingsError as error:
        raise SettingsError(str(error).replace("ACCORDION_DATABASE_URL", "the URL")) from None


def _describe_contents(contents: BackupContents) -> str:
    counts = [("jobs", "job"), ("users", "user"), ("events", "event")]
    named = [_format_count(contents.rows[table], unit) for table, unit in counts]
    return f"{', '.join(named)}, {_format_count(len(contents.code), 'upload')} of code"


def _describe_omissions(settings: Settings) -> str:
    """Return what a backup leaves out, and what to copy besides."""
    file = settings.secrets_key_file or settings.home_secrets_key
    key = "ACCORDION_SECRETS_KEY" if settings.secrets_key_text is not None else str(file)
    return (
        "not in it: checkpoints and other files on the storage, files of loggers, settings, tokens"
        f" of the home directory, and the key of secrets ({key}): copy the key as well, or all"
        " secrets must be set again after a restore"
    )


def _format_count(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"
