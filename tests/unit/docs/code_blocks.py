"""Code blocks of the book, for the tests that run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
BOOK = ROOT / "docs"
_FENCE = re.compile(r"^```([\w{}-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHAPTERS = ("start", "guides")
"""Chapters whose code blocks are run."""


@dataclass(frozen=True, slots=True)
class Block:
    """One code block."""

    page: str
    """Path in the book, without its ending."""
    line: int
    language: str
    """`sh`, `yaml`, `python`, ..., or `{name}` for a directive of Sphinx."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    text = (BOOK / f"{page}.md").read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def find_blocks(language: str) -> list[Block]:
    """Return all blocks of a language in the chapters whose blocks are run."""
    pages = sorted(
        f"{chapter}/{page.stem}" for chapter in CHAPTERS for page in (BOOK / chapter).glob("*.md")
    )
    return [block for page in pages for block in read_blocks(page) if block.language == language]
