"""Backups: one archive with the database and the uploaded code, made while the service runs.

    contents.json   format, version of the tables, time, storage, number of rows by table, and
                    digests of the other members
    accordion.db    all rows, as a SQLite database, also of a PostgreSQL database
    code/*.zip      uploaded code

Not in it: checkpoints and other files on the storage, files of loggers, settings, tokens of the
home directory, and the key that decrypts secrets.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Connection, select, update

from accordion_service.domain.documents import value_at
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.errors import StartError
from accordion_service.process.temp_folders import private_folder, remove_abandoned_folders
from accordion_service.settings.home import OWNER_ONLY_DIR, OWNER_ONLY_FILE, Home
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import head, refuse_unreleased, upgrade
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.copying import check_target, copy_database, count_rows

FORMAT = 1
_CONTENTS, _DATABASE, _CODE = "contents.json", "accordion.db", "code"
_PART = ".part"
_BACKUP_FOLDER, _RESTORE_FOLDER = ".backup-", ".restore-"
"""Beginnings of the names of temporary folders in the home directory."""
_PART_FOLDER = ".accordion-backup-"
"""Beginning of the name of the temporary folder beside a backup that is not complete."""
_MAX_CONTENTS_BYTES = 64_000_000
_ORDERS_AHEAD = 1_000_000
"""Added to the version of the orders of restored jobs: more orders than workers can have received
since the backup.
"""


class BackupContents(BaseModel):
    """First member of a backup: what else is in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    revision: str
    """Version of the tables."""
    created_at: datetime
    storage: str
    """Where the checkpoints were at that time, as the job shows that started last; empty if none
    shows it.
    """
    rows: dict[str, int]
    """Number of rows by table."""
    sha256: dict[str, str]
    """Digest of each other member, by name."""

    @property
    def code(self) -> list[str]:
        """File names of the uploaded code."""
        return [Path(name).name for name in self.sha256 if name.startswith(f"{_CODE}/")]


def write_backup(settings: Settings, file: Path, now: float) -> BackupContents:
    """Write a backup of the state at this moment to a new file, readable by its owner only.

    Needs space for two copies of the database in the home directory.

    Raises:
        StartError: the database cannot be used, the file exists, or it cannot be written.
    """
    home = Home(settings.home)
    home.make()
    _refuse_existing(file)
    _check_writable(file)
    try:
        with (
            _make_folder(_PART_FOLDER, file.parent) as place,
            _make_folder(_BACKUP_FOLDER, settings.home) as folder,
        ):
            contents = _collect(settings, folder, now)
            part = place / file.name
            _write_archive(folder, contents, part)
            _publish(part, file)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename or file}"
        raise StartError(f"no backup was written ({reason}); free some space") from error
    return contents


def restore_backup(settings: Settings, file: Path, now: float) -> BackupContents:
    """Restore a backup to a home directory and a database that nobody has used.

    Raises:
        StartError: it is no backup, this version cannot read it, a service runs, or the database
            has been used.
    """
    home = Home(settings.home)
    home.make()
    with home.locked():
        check_target(settings.database, now)
        with _extract(file, settings.home) as (folder, contents):
            database = f"sqlite:///{folder / _DATABASE}"
            if count_rows(database) != contents.rows:
                raise StartError(f"{file} is damaged: it lacks rows; name another one")
            upgrade(database)
            _restore_code(folder, contents, settings.code)
            rows = copy_database(database, settings.database, now=now, finish=_renew_orders)
    return contents.model_copy(update={"rows": rows})


def move_database(settings: Settings, target_url: str, now: float) -> dict[str, int]:
    """Copy the database of a stopped service to another one; return the number of rows by table.

    Raises:
        StartError: a service runs, a database cannot be used, or the target has been used.
    """
    home = Home(settings.home)
    home.make()
    with home.locked():
        return copy_database(settings.database, target_url, now=now, holds_writers=True)


def find_storage(settings: Settings) -> str:
    """Return where a service keeps the checkpoints of its jobs."""
    return settings.storage_of("").rstrip("/")


def _refuse_existing(file: Path) -> None:
    if file.exists() or file.is_symlink():
        raise StartError(f"{file} exists; name a new file")


def _check_writable(file: Path) -> None:
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise StartError(f"{file} cannot be written; name another one, in a directory of yours")


def _publish(part: Path, file: Path) -> None:
    """Give a complete file its final name, unless another backup has taken that meanwhile."""
    try:
        os.link(part, file)
    except OSError:
        # The name is taken, or the file system has no links, as that of many a memory stick.
        _refuse_existing(file)
        part.rename(file)


@contextmanager
def _make_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Create a folder in another one until the end of the block, and remove those of killed
    processes.
    """
    for name in (_PART_FOLDER, _BACKUP_FOLDER, _RESTORE_FOLDER):
        remove_abandoned_folders(name, parent, time.time())
    with private_folder(prefix, parent) as folder:
        yield folder


def _collect(settings: Settings, folder: Path, now: float) -> BackupContents:
    """Copy database and code to a folder, and describe them."""
    (folder / _CODE).mkdir()
    # Code is uploaded before a job names it. That of a job which is deleted meanwhile may go.
    _copy_code(settings.code, folder / _CODE)
    copy = f"sqlite:///{folder / _DATABASE}"
    rows = copy_database(settings.database, copy, now=now)
    _copy_code(settings.code, folder / _CODE)
    storage = _find_used_storage(copy)
    with closing(sqlite3.connect(folder / _DATABASE)) as database:
        database.execute("PRAGMA journal_mode=DELETE")  # all rows are in the one file
    members = [_DATABASE, *sorted(f"{_CODE}/{path.name}" for path in (folder / _CODE).iterdir())]
    return BackupContents(
        format=FORMAT,
        revision=head(),
        created_at=datetime.fromtimestamp(now, UTC),
        storage=storage,
        rows=rows,
        sha256={name: _compute_sha256(folder / name) for name in members},
    )


def _find_used_storage(url: str) -> str:
    """Return the directory of the checkpoints of the worker group that started last, apart from
    jobs with a storage of their own; empty if there is none.

    The process that makes a backup may have other settings than the service.
    """
    database = Database(url)
    query = select(JobRow.id, JobRow.spec, JobRow.storage).where(JobRow.storage.is_not(None))
    try:
        with database.read() as session:
            found = [
                (value_at(used, "seen_at", 0.0), value_at(used, "place", "").split(f"/{job_id}")[0])
                for job_id, spec, used in session.execute(query)
                if not value_at(spec, "checkpoint.storage", "")
            ]
    finally:
        database.close()
    return max(found, default=(0.0, ""))[1]


def _copy_code(source: Path, target: Path) -> None:
    for path in source.glob("*.zip"):
        if not (target / path.name).exists():
            with suppress(FileNotFoundError):
                shutil.copyfile(path, target / path.name)


def _write_archive(folder: Path, contents: BackupContents, file: Path) -> None:
    (folder / _CONTENTS).write_text(contents.model_dump_json(indent=2))
    with os.fdopen(
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY_FILE), "wb"
    ) as to:
        with tarfile.open(fileobj=to, mode="w:gz", compresslevel=6) as archive:
            for name in (_CONTENTS, *contents.sha256):
                archive.add(folder / name, name)
        to.flush()
        os.fsync(to.fileno())


@contextmanager
def _extract(file: Path, home: Path) -> Iterator[tuple[Path, BackupContents]]:
    """Extract the members of a backup to a folder that is removed afterwards, and check them.

    Raises:
        StartError: it is no backup, or it is damaged.
    """
    with _make_folder(_RESTORE_FOLDER, home) as folder:
        try:
            contents = _extract_members(file, folder)
        except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
            raise StartError(f"{file} cannot be read as a backup ({reason})") from error
        _check_digests(folder, contents.sha256, file)
        yield folder, contents


def _extract_members(file: Path, folder: Path) -> BackupContents:
    """Extract the members that a backup lists, and no others."""
    (folder / _CODE).mkdir()
    with tarfile.open(file) as archive:
        contents = _read_contents(archive, file)
        for name in (_DATABASE, *(f"{_CODE}/{one}" for one in contents.code)):
            _extract_member(archive, name, folder)
        # The checksum of a compressed file is at its end, which is checked once it is reached.
        while archive.next() is not None:
            pass
    return contents


def _extract_member(archive: tarfile.TarFile, name: str, folder: Path) -> None:
    source = archive.extractfile(name)
    if source is None:
        raise tarfile.TarError(f"{name} is not a file")
    with source, (folder / name).open("xb") as target:
        shutil.copyfileobj(source, target)


def _read_contents(archive: tarfile.TarFile, file: Path) -> BackupContents:
    first = archive.next()
    source = archive.extractfile(first) if first is not None and first.name == _CONTENTS else None
    if source is None:
        raise StartError(f"{file} is not a backup of this service: it has no {_CONTENTS}")
    try:
        contents = BackupContents.model_validate_json(source.read(_MAX_CONTENTS_BYTES))
    except ValidationError as error:
        raise StartError(
            f"{file} is damaged, or was made by another version: {_CONTENTS} cannot be read"
        ) from error
    refuse_unreleased(contents.revision, str(file))
    if contents.format != FORMAT or contents.revision > head():
        raise StartError(
            f"{file} was made by a newer version (format {contents.format}, tables"
            f" {contents.revision}); this one reads format {FORMAT} and tables up to {head()}:"
            " restore it with the version that made it"
        )
    return contents


def _check_digests(folder: Path, digests: Mapping[str, str], file: Path) -> None:
    damaged = [
        name
        for name, digest in digests.items()
        if name != _CONTENTS and _compute_sha256(folder / name) != digest
    ]
    if damaged or _DATABASE not in digests:
        raise StartError(f"{file} is damaged ({', '.join(damaged) or _DATABASE}); name another one")


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _restore_code(folder: Path, contents: BackupContents, target: Path) -> None:
    target.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
    for name in contents.code:
        part = target / f".{name}{_PART}"
        shutil.copyfile(folder / _CODE / name, part)
        part.chmod(OWNER_ONLY_FILE)
        part.replace(target / name)


def _renew_orders(connection: Connection) -> None:
    """Let workers take the orders of restored jobs for newer than any that they know."""
    names = [status.value for status in UNFINISHED]
    connection.execute(
        update(JobRow)
        .where(JobRow.status.in_(names))
        .values(orders_version=JobRow.orders_version + _ORDERS_AHEAD, version=JobRow.version + 1)
    )
