"""Links between the pages of the book, and of READMEs, lead to a page and a heading that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FOLDERS = ("accordion", "deploy", "docs", "service", "workers")


def pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.md")


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MyST make them."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link or link.startswith("mailto:"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{page.name}: {link}"


def find_dead(pages: Iterable[Path]) -> list[str]:
    return [link for page in pages for link in dead_links(page)]


def test_links_inside_the_book_and_of_readmes_lead_somewhere() -> None:
    assert find_dead(pages()) == []


@pytest.mark.parametrize("link", ["away.md", "page.md#no-heading", "#no-heading"])
def test_a_planted_dead_link_is_found(tmp_path: Path, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A heading\n\n[here](#a-heading), [there](page.md) and [gone]({link})\n")
    assert find_dead([page]) == [f"page.md: {link}"]
