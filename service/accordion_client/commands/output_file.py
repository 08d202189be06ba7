"""The file that a command downloads to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def choose_output_file(to: Path | None, default: str, *, force: bool) -> Iterator[Path]:
    """Choose the file of `--to`, or one in the current directory, which is written in the block.

    Raises:
        BadParameter: it is a directory, or exists and `force` is not given.
        SettingsError: it cannot be written.
    """
    from accordion_service.errors import SettingsError

    file = to or Path(default)
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a directory; give a file with --to")
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists; give another file with --to, or --force")
    try:
        yield file
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be written ({error.strerror}); give another file with --to"
        ) from error
