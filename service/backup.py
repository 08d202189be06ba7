"""Backups: one archive with the database and the uploaded code, made while the service runs.

    manifest.json   format, version of the tables, time, and number of rows by table
    accordion.db    all rows, as a SQLite database, also of a PostgreSQL database
    code/*.zip      uploaded code

Checkpoints and logs on the storage are not in it, and neither are tokens of the home directory.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel, ValidationError

from service.errors import StartError
from service.home import OWNER_ONLY_DIR, OWNER_ONLY_FILE, Home
from service.settings import Settings
from service.store.copying import check_stopped, copy_database
from service.store.migrations import head, upgrade

FORMAT = 1
_MANIFEST, _DATABASE, _CODE = "manifest.json", "accordion.db", "code"
_PART = ".part"


class BackupContents(BaseModel):
    """What a backup holds."""

    format: int
    revision: str
    """Version of the tables."""
    created_at: datetime
    rows: dict[str, int]
    """Number of rows by table."""
    code: list[str]
    """File names of the uploaded code."""


def write_backup(settings: Settings, file: Path, now: float) -> BackupContents:
    """Write a backup of the state at this moment to a new file, readable by its owner only.

    Raises:
        StartError: the database cannot be used, the file exists, or it cannot be written.
    """
    if file.exists():
        raise StartError(f"{file} exists; name a new file")
    part = file.with_name(file.name + _PART)
    try:
        with TemporaryDirectory(dir=file.parent, prefix=".backup-") as folder:
            return _write_archive(settings, Path(folder), part=part, file=file, now=now)
    except OSError as error:
        raise StartError(f"{file} cannot be written ({error.strerror}); nothing is kept") from error
    finally:
        part.unlink(missing_ok=True)


def restore_backup(settings: Settings, file: Path, now: float) -> BackupContents:
    """Restore a backup to a home directory and a database that have not been used.

    Raises:
        StartError: it is no backup, this version cannot read it, a service runs, or the database
            has been used.
    """
    home = Home(settings.home)
    home.make()
    with home.locked(), _extract(file, settings.home) as folder:
        contents = _read_contents(folder, file)
        database = f"sqlite:///{folder / _DATABASE}"
        upgrade(database)
        upgrade(settings.database)
        check_stopped(settings.database, now)
        _restore_code(folder, contents, settings.code)
        rows = copy_database(database, settings.database)
    return contents.model_copy(update={"rows": rows})


def move_database(settings: Settings, target_url: str, now: float) -> dict[str, int]:
    """Copy the database of a stopped service to another one; return the number of rows by table.

    Raises:
        StartError: a service runs, a database cannot be used, or the target has been used.
    """
    home = Home(settings.home)
    home.make()
    with home.locked():
        check_stopped(settings.database, now)
        return copy_database(settings.database, target_url)


def _write_archive(
    settings: Settings, folder: Path, *, part: Path, file: Path, now: float
) -> BackupContents:
    rows = copy_database(settings.database, f"sqlite:///{folder / _DATABASE}")
    # Code is uploaded before a job names it, so all that the rows name is there.
    code = sorted(path for path in settings.code.glob("*.zip") if path.is_file())
    contents = BackupContents(
        format=FORMAT,
        revision=head(),
        created_at=datetime.fromtimestamp(now, UTC),
        rows=rows,
        code=[path.name for path in code],
    )
    (folder / _MANIFEST).write_text(contents.model_dump_json(indent=2))
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY_FILE)
    with os.fdopen(descriptor, "wb") as opened:
        with tarfile.open(fileobj=opened, mode="w:gz") as archive:
            archive.add(folder / _MANIFEST, _MANIFEST)
            archive.add(folder / _DATABASE, _DATABASE)
            for path in code:
                archive.add(path, f"{_CODE}/{path.name}")
        opened.flush()
        os.fsync(opened.fileno())
    os.link(part, file)  # unlike a rename, it replaces nothing
    return contents


@contextmanager
def _extract(file: Path, home: Path) -> Iterator[Path]:
    """Extract a backup to a folder that is removed afterwards.

    Raises:
        StartError: it cannot be read.
    """
    with TemporaryDirectory(dir=home, prefix=".restore-") as folder:
        try:
            with tarfile.open(file) as archive:
                archive.extractall(folder, filter="data")
        except (OSError, EOFError, tarfile.TarError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
            raise StartError(
                f"{file} is no readable backup ({reason}); name another one"
            ) from error
        yield Path(folder)


def _read_contents(folder: Path, file: Path) -> BackupContents:
    try:
        contents = BackupContents.model_validate_json((folder / _MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{file} is no backup of this service: it has no {_MANIFEST}") from error
    if contents.format != FORMAT or contents.revision > head():
        raise StartError(
            f"{file} was made by a newer version (format {contents.format}, tables"
            f" {contents.revision}); this one reads up to format {FORMAT}, tables {head()}: restore"
            " it with the version that made it"
        )
    return contents


def _restore_code(folder: Path, contents: BackupContents, target: Path) -> None:
    target.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
    for name in contents.code:
        part = target / f".{Path(name).name}{_PART}"
        shutil.copyfile(folder / _CODE / Path(name).name, part)
        part.replace(target / Path(name).name)
