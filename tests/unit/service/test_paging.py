"""Lists that commands read page by page."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from accordion_client.commands.paging import PAGE_ITEMS, PagedItems, print_json_list


class Number(BaseModel):
    """One item."""

    value: int
    text: str = 'line\n"break"'


@dataclass
class NumberPage:
    """Items from a cursor on, which is the first of them."""

    items: list[Number]
    next_cursor: int | None


class Numbers:
    """A list of numbers, and the sizes of the pages that were read of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sizes: list[int] = []

    def read_page(self, size: int, cursor: int | None) -> NumberPage:
        """Read one page."""
        self.sizes.append(size)
        begin = cursor or 0
        end = min(self.count, begin + size)
        items = [Number(value=value) for value in range(begin, end)]
        return NumberPage(items, end if end < self.count else None)


@pytest.mark.parametrize(
    ("limit", "cursor", "values", "next_cursor", "num_pages"),
    [
        (20, None, range(20), 20, 1),
        (PAGE_ITEMS + 1, None, range(PAGE_ITEMS + 1), PAGE_ITEMS + 1, 2),
        (0, None, range(500), None, 3),
        (900, None, range(500), None, 3),
        (500, None, range(500), None, 3),
        (20, 490, range(490, 500), None, 1),
    ],
)
def test_as_many_items_as_asked_for_are_read(
    limit: int, cursor: int | None, values: range, next_cursor: int | None, num_pages: int
) -> None:
    numbers = Numbers(500)
    found = PagedItems(numbers.read_page, limit=limit, cursor=cursor)
    assert [item.value for item in found] == list(values)
    assert (found.next_cursor, len(numbers.sizes)) == (next_cursor, num_pages)
    assert max(numbers.sizes) <= PAGE_ITEMS


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_is_printed_as_one_json_document(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json_list(PagedItems(Numbers(count).read_page, limit=2, cursor=None))
    printed = capsys.readouterr().out
    document = {
        "items": [Number(value=value).model_dump() for value in range(min(count, 2))],
        "next_cursor": 2 if count == 3 else None,
    }
    assert json.loads(printed) == document
    assert printed == json.dumps(document, indent=2) + "\n"


def test_a_list_that_breaks_off_is_whole_and_has_the_cursor_of_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = Numbers(PAGE_ITEMS + 1)

    def read_first_page(size: int, cursor: int | None) -> NumberPage:
        if cursor is not None:
            raise ConnectionError(f"{size} after {cursor}")
        return numbers.read_page(size, cursor)

    with pytest.raises(ConnectionError):
        print_json_list(PagedItems(read_first_page, limit=0, cursor=None))
    document = json.loads(capsys.readouterr().out)
    assert [item["value"] for item in document["items"]] == list(range(PAGE_ITEMS))
    assert document["next_cursor"] == PAGE_ITEMS


def test_a_list_that_is_refused_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(size: int, cursor: object) -> NumberPage:
        raise ConnectionError(f"{size} after {cursor}")

    with pytest.raises(ConnectionError):
        print_json_list(PagedItems(refuse, limit=2, cursor=None))
    assert capsys.readouterr().out == ""
