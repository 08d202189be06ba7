"""What the packages import is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source import PACKAGES, ROOT, parse, source_files

FRAMEWORKS = frozenset({"accelerate", "lightning", "pytorch_lightning", "transformers"})
"""What a user's own script brings."""
USED_UNIMPORTED = {
    "adlfs": "fsspec, for storage in Azure",
    "gcsfs": "fsspec, for storage in Google's cloud",
    "pip": "a process of its own",
    "plotly": "the dashboard serves the JavaScript in it",
    "psycopg": "SQLAlchemy, for PostgreSQL",
    "s3fs": "fsspec, for storage in S3",
    "scikit-learn": "a task reads the data in it",
}
"""Distributions that no file imports, and who uses them."""
CHECKS = frozenset({"docs", "test"})


def imported(paths: Iterable[Path]) -> Iterator[str]:
    """Top-level names from outside of the standard library and of our packages."""
    for path in [*paths, *(ROOT / "service").rglob("migrations/**/*.py")]:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def declared() -> set[str]:
    """Distributions that pyproject.toml names, but for those that only checks need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [
        *project["dependencies"],
        *(t for n, e in extras.items() if n not in CHECKS for t in e),
    ]
    names = {canonicalize_name(Requirement(text).name) for text in texts}
    return names - {canonicalize_name(project["name"])}


def distributions() -> set[str]:
    """Distributions of everything that is imported."""
    ours = {*PACKAGES, *FRAMEWORKS, *sys.stdlib_module_names}
    homes = packages_distributions()
    found = set(imported(source_files())) - ours
    return {canonicalize_name(homes[name][0]) if name in homes else name for name in found}


def test_everything_that_is_imported_is_declared() -> None:
    assert distributions() - declared() == set()


def test_everything_that_is_declared_is_used() -> None:
    assert declared() - distributions() == USED_UNIMPORTED.keys()
