"""Options of commands that take a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import typer

_FORMAT = "a date or time such as 2027-01-31 or 2027-01-31T22:00:00+01:00; without a zone, yours"


def create_time_option(name: str, what: str) -> Any:
    """Return an option whose help says what it does, and how to write the time."""
    return typer.Option(name, metavar="TIME", help=f"{what}: {_FORMAT}")


def parse_times(texts: Mapping[str, str | None]) -> dict[str, datetime]:
    """Parse the dates and times that are given, by the name of the parameter; one without a zone is
    in the zone of this machine.

    Raises:
        BadParameter: one is neither.
    """
    return {name: _parse_time(name, text) for name, text in texts.items() if text is not None}


def _parse_time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        option = f"--{name.replace('_', '-')}"
        raise typer.BadParameter(f"{option} is {text!r}; give {_FORMAT}") from None
