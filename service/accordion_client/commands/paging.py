"""Reads lists of any length page by page, for commands with `--limit` and `--cursor`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

import typer
from pydantic import BaseModel

from accordion_client.commands.cli_support import escape_controls

Item = TypeVar("Item", bound=BaseModel, covariant=True)
PAGE_ITEMS = 200
"""Maximum number of items that the service returns at once."""
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit",
        metavar="NUMBER",
        min=0,
        help="how many to list, the newest first; 0 for all",
    ),
]
CURSOR_HELP = "continue where an earlier list ended, with its next_cursor"
CursorOption = Annotated[str | None, typer.Option("--cursor", metavar="CURSOR", help=CURSOR_HELP)]


class ItemPage(Protocol[Item]):
    """One page of a list."""

    @property
    def items(self) -> Sequence[Item]:
        """Items of the page."""

    @property
    def next_cursor(self) -> str | int | None:
        """Cursor of the next page; None on the last one."""


ReadPage = Callable[[int, Any], ItemPage[Item]]
"""Reads the page of so many items that begins at a cursor."""


class PagedItems(Generic[Item]):
    """The first items of a list, read as they are iterated over, once."""

    def __init__(self, read_page: ReadPage[Item], *, limit: int, cursor: str | int | None) -> None:
        """Prepare to read a list.

        Args:
            read_page: reads one page.
            limit: number of items; 0 for all.
            cursor: where to begin; None for the beginning of the list.
        """
        self._read_page = read_page
        self._limit = limit
        self.next_cursor = cursor
        """Cursor of the first item that was not read; None after the last one."""

    def __iter__(self) -> Iterator[Item]:
        num_read = 0
        while True:
            left = self._limit - num_read if self._limit else PAGE_ITEMS
            page = self._read_page(min(PAGE_ITEMS, left), self.next_cursor)
            num_read += len(page.items)
            self.next_cursor = page.next_cursor
            yield from page.items
            if page.next_cursor is None or num_read == self._limit:
                return


def print_json_list(found: PagedItems[Any]) -> None:
    """Write a list as one JSON document to standard output, each item as soon as it is read.

    If the first request fails, nothing is written. If a later one fails, the document ends with the
    cursor of the page that is missing.
    """
    begin = '{\n  "items": ['
    try:
        for item in found:
            text = json.dumps(item.model_dump(mode="json"), indent=2, ensure_ascii=False)
            indented = escape_controls(text).replace("\n", "\n    ")
            sys.stdout.write(f"{begin}\n    {indented}")
            begin = ","
    except Exception:
        if begin == ",":
            _end_document("\n  ]", found.next_cursor)
        raise
    _end_document("\n  ]" if begin == "," else f"{begin}]", found.next_cursor)


def _end_document(end: str, next_cursor: str | int | None) -> None:
    sys.stdout.write(f'{end},\n  "next_cursor": {json.dumps(next_cursor)}\n}}\n')
    sys.stdout.flush()


def report_more(noun: str, found: PagedItems[Any]) -> None:
    """Say how to list more items than were printed, if there are more."""
    if found.next_cursor is not None:
        typer.echo(
            f"more {noun} exist; --cursor {found.next_cursor} lists the next ones, --limit 0 all"
        )
