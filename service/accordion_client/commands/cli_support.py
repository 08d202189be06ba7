"""Options, connection and output shared by the commands."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from accordion_client.commands.completion import complete_job
from accordion_workers.common.plain_text import clean_for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from accordion_client import Client
    from accordion_service.schemas.jobs import JobView

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="job id, id prefix or name; if several match, the unfinished one",
        autocompletion=complete_job,
    ),
]
UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="URL of the service (default: ACCORDION_URL, a profile, or the service of this home)",
    ),
]
SpecArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="spec in YAML or JSON; - for standard input")
]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help=(
            "set one value of the spec, such as policy.name=cost_aware; a mapping replaces all of"
            " what the spec has there; may be repeated"
        ),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]

FAILED = 1
_ID_LENGTH = 36
"""Characters of the ID of a job."""
_PIPE_WIDTH = 100_000
"""Width of tables if standard output is not a terminal: no row is that long, so each is one line.
"""
_MOST_DIGITS = 18
"""Python refuses to read more than 4,300."""


def connect_client(url: str) -> Client:
    """Create a client of the service that the option, the settings or the home directory names.

    Raises:
        SettingsError: a setting is wrong.
    """
    from accordion_client import Waiter
    from accordion_client.machine import connection

    return connection.connect(url, waiter=Waiter(tell=_report_reconnect))


def find_to_read(client: Client, reference: str) -> JobView:
    """Find the job that a command shows, or makes another one from.

    If several ended jobs match, returns the newest and says so on standard error.

    Raises:
        AmbiguousJob: none matches, or several that have not ended.
    """
    from accordion_client import AmbiguousJob

    try:
        return client.find(reference)
    except AmbiguousJob as error:
        if error.newest_ended is None:
            raise
        newest = error.newest_ended
        typer.echo(
            f"accordion: several ended jobs match {reference!r}; taking the newest, {newest}",
            err=True,
        )
        return client.job(newest)


def find_job_id(client: Client, reference: str) -> str:
    """Return the ID of a job; a whole ID is taken as it is, because the job may be deleted.

    Raises:
        AmbiguousJob: none matches, or several that have not ended.
    """
    return reference if len(reference) == _ID_LENGTH else find_to_read(client, reference).id


def parse_whole(text: str) -> int | None:
    """Return the whole number that a text is, from 0 on; None for another text, or one of more
    digits than any number of ours has.
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def create_console() -> Console:
    """Create a console whose colors and width follow the terminal; texts are printed as they are,
    with markup and names of emoji, but without control characters.
    """
    from accordion_client.commands.clean_console import CleanConsole

    if sys.stdout.isatty():
        return CleanConsole(highlight=False, markup=False, emoji=False)
    return CleanConsole(
        highlight=False, markup=False, emoji=False, soft_wrap=True, width=_PIPE_WIDTH
    )


def print_line(text: str, *, err: bool = False) -> None:
    """Print a text that may come from another user's job, without control characters."""
    typer.echo(clean_for_terminal(text), err=err)


def create_table(*columns: str) -> Table:
    """Create a table with these column headers and without borders."""
    from rich.table import Table

    return Table(*columns, box=None, header_style="dim", pad_edge=False)


def _report_reconnect(error: Exception) -> None:
    """Report that a stream lost the service, so that waiting does not look like hanging."""
    typer.echo(f"accordion: {error}; trying to reconnect", err=True)


def print_json(data: BaseModel | dict[str, Any] | list[Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to standard output."""
    plain = data.model_dump(mode="json") if isinstance(data, BaseModel) else data
    sys.stdout.write(escape_controls(json.dumps(plain, indent=indent, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def escape_controls(document: str) -> str:
    """Escape the control characters that JSON allows in texts, but terminals execute."""
    return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", document)


def get_exit_code(status: str) -> int:
    """Return the exit code for the final status of a job."""
    return 0 if status == "SUCCEEDED" else FAILED
