"""Plants imports in a copy of the packages, each alone, and checks the contract that it breaks.

Reads a list of (contract, file, line) from standard input as JSON; prints what import-linter
returned and said about each as another list. Run in the copy.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from importlinter.cli import lint_imports


@contextmanager
def planted(path: Path, line: str) -> Iterator[None]:
    """A file with one more line, taken out afterwards."""
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_text(before)


def check(contract: str, name: str, line: str) -> tuple[int, str]:
    """Exit status and report of import-linter."""
    report = io.StringIO()
    with planted(Path(name), line), redirect_stdout(report):
        status = lint_imports(limit_to_contracts=(contract,), no_cache=True)
    return status, report.getvalue()


if __name__ == "__main__":
    found = [check(*planting) for planting in json.load(sys.stdin)]
    print(json.dumps(found))
