"""Files that docstrings, comments and READMEs name exist, so that no rename leaves an old name."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source import ROOT, parse, source_files
from tests.architecture.test_words import docstrings

PYTHON_FILE = re.compile(r"(?<![\w./<>{*-])(?:[\w-]+/)*\w+\.py\b(?!/)")
EXAMPLES = {
    "file.py": "the place of an error: `file.py:line`",
    "train.py": "a user's training script",
    "ray/util/scheduling_strategies.py": "a file of Ray",
}
"""Names that stand for no file of this repository."""
FOLDERS = ("accordion", "deploy", "docs", "service", "tests", "workers")


@cache
def python_files() -> frozenset[str]:
    """Paths of the repository's Python files, each with all of its shorter endings."""
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return frozenset(
        "/".join(path.parts[first:]) for path in paths for first in range(len(path.parts))
    )


def comments(path: Path) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return (token.string for token in tokens if token.type == tokenize.COMMENT)


def missing_files(texts: Iterable[str]) -> set[str]:
    """Python files that the texts name and the repository does not have."""
    named = {name for text in texts for name in PYTHON_FILE.findall(text)}
    return named - python_files() - EXAMPLES.keys()


def test_python_files_named_in_docstrings_and_comments_exist() -> None:
    paths = [*source_files(), *sorted((ROOT / "tests").rglob("*.py"))]
    found = {
        str(path.relative_to(ROOT)): missing_files([*docstrings(parse(path)), *comments(path)])
        for path in paths
    }
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_python_files_named_in_readmes_exist() -> None:
    paths = [
        *ROOT.glob("*.md"),
        *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md")),
    ]
    found = {
        str(path.relative_to(ROOT)): missing_files([path.read_text()])
        for path in paths
        if path.name != "CHANGELOG.md"
    }
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_a_planted_name_of_no_file_is_found() -> None:
    texts = ["see `workers/supervisor.py`", "# (`controller/attempt.py`, planted.py)"]
    assert missing_files(texts) == {"workers/supervisor.py", "planted.py"}
