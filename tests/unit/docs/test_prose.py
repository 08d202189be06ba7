"""Pages of the book and the README: no sentence is cut by a heading, and no line stands twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.docs.code_blocks import BOOK, ROOT

PAGES = [ROOT / "README.md", *sorted(BOOK.rglob("*.md"))]
SHORTEST = 40
"""Characters from which a line of prose is not repeated by chance."""
ENDS = tuple(".:!?)`*|>")
"""Last characters of a paragraph, a table, a code block, a link or an image."""


def paragraphs_of(page: Path) -> list[str]:
    """Paragraphs, headings and tables, less code blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [found.strip() for found in re.split(r"\n\s*\n", text) if found.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_each_sentence_once_and_to_its_end(page: Path) -> None:
    paragraphs = paragraphs_of(page)
    followed = zip(paragraphs, [*paragraphs[1:], "# end"], strict=True)
    cut = [
        text[-SHORTEST:]
        for text, following in followed
        if following.startswith("#") and not text.startswith("#") and not text.endswith(ENDS)
    ]
    lines = Counter(line.strip() for text in paragraphs for line in text.splitlines())
    twice = [line for line, times in lines.items() if times > 1 and len(line) >= SHORTEST]
    assert (cut, twice) == ([], [])
