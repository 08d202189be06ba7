"""Alembic's scripts, packaged; `upgrade` is how every process brings the database to its own
version.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, OperationalError

from accordion_service.errors import StartError
from accordion_service.store.engine.database import Database, hide_password, lacks_file
from accordion_service.store.engine.file_guard import is_damage
from accordion_service.store.engine.postgres import find_encoding
from accordion_service.store.migrations.refused_upgrades import (
    describe_foreign_revision,
    explain_refusal,
)

_PG_LOCK = 0x4143_434F
"""Any number that nobody else uses for an advisory lock in this database."""

_RUNNING = threading.Lock()
"""Held while Alembic runs, which keeps what it works on in variables of its module."""

_REVISION = re.compile(r"r?\d{4}")
_FIRST = "r0001"
"""Revision of the first release; those of the development before it sort below."""


def upgrade(url: str) -> None:
    """Create or migrate the tables; several processes may call it at once, one of them does the
    work.

    Raises:
        StartError: the database does not answer, its file cannot be made, its driver is not
            installed, its encoding is not UTF8, it holds tables of another program or of a version
            that this one cannot use, or the role may not create tables.
    """
    parsed = make_url(url)
    try:
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            _create_file(Path(parsed.database))
        _upgrade(url)
    except DatabaseError as error:
        refusal = explain_refusal(error, url)
        if refusal is not None:
            raise StartError(refusal) from error
        if not (isinstance(error, OperationalError) or is_damage(error.orig)):
            raise
        raise _unusable_error(url, " ".join(str(error.orig).split())) from error
    except OSError as error:
        raise _unusable_error(url, error.strerror) from error


def _unusable_error(url: str, reason: str | None) -> StartError:
    return StartError(
        f"the database {hide_password(url)} cannot be used ({reason});"
        " is it up, and are ACCORDION_HOME and ACCORDION_DATABASE_URL right?"
    )


def _create_file(path: Path) -> None:
    """Create a missing file that only its owner can read; SQLite gives the files beside it the same
    mode.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.name != ":memory:" and not path.exists():
        path.touch(mode=0o600)


def _upgrade(url: str) -> None:
    database = Database(url)
    try:
        with database.connect_writer() as connection:
            if connection.dialect.name == "postgresql":
                _check_encoding(find_encoding(connection), url)
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PG_LOCK})
            found = MigrationContext.configure(connection).get_current_revision()
            if found == head():
                return
            _check_revision(found, url)
            config = alembic_config()
            config.attributes["connection"] = connection
            with _RUNNING:
                command.upgrade(config, "head")
    finally:
        database.close()


def check_tables(url: str) -> None:
    """Check that this version can use the tables of a database, if it has any.

    Raises:
        StartError: they are of a newer version, from before the first release, or of another
            program.
    """
    if lacks_file(url):
        return
    database = Database(url)
    try:
        _check_revision(current(database), url)
    finally:
        database.close()


def _check_revision(found: str | None, url: str) -> None:
    if found is not None and not _REVISION.fullmatch(found):
        raise StartError(describe_foreign_revision(found, url))
    refuse_unreleased(found, f"the database {hide_password(url)}")
    if found is not None and found > head():
        raise StartError(
            f"a newer version of Accordion has migrated the database {hide_password(url)}"
            f" (tables of version {found}; this one knows {head()} and older): start the"
            " newer version, or restore a backup from before the upgrade into an empty"
            " database ('accordion restore')"
        )


def refuse_unreleased(revision: str | None, owner: str) -> None:
    """Refuse tables from before the first release; `owner` is what has them, such as a backup.

    Raises:
        StartError: they are such tables.
    """
    if revision is not None and revision < _FIRST:
        raise StartError(
            f"{owner} was made before the first release: start with a new home"
            " (ACCORDION_HOME=...) or database; to take jobs along, 'accordion list --json' and"
            " 'accordion show NAME --json' of the old version have their specs, which 'accordion"
            " submit' takes"
        )


def _check_encoding(encoding: str, url: str) -> None:
    if encoding != "UTF8":
        raise StartError(
            f"the database {hide_password(url)} has the encoding {encoding}, which cannot hold"
            " every text of a job; create one with the encoding UTF8 (CREATE DATABASE accordion"
            " ENCODING 'UTF8' TEMPLATE template0), and let ACCORDION_DATABASE_URL name it"
        )


def alembic_config() -> Config:
    """Alembic's settings without an ini file."""
    config = Config()
    # The value may refer to others with %, which is also in the names of folders.
    folder = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", folder)
    return config


@cache
def head() -> str:
    """The newest revision that this code knows."""
    return str(ScriptDirectory.from_config(alembic_config()).get_current_head())


def current(database: Database) -> str | None:
    """The revision of the database; None where it holds no tables yet."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
