"""Copies all rows of one database to another one, whichever kind each is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Table, func, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.errors import StartError
from accordion_service.store.engine.database import Database, hide_password, lacks_file
from accordion_service.store.engine.postgres import lift_limits
from accordion_service.store.migrations import (
    check_tables,
    current,
    head,
    refuse_unreleased,
    upgrade,
)
from accordion_service.store.tables.models import Base, LeaseRow

_ROWS_AT_ONCE = 200
_FROM_THE_START = frozenset(
    {
        "audit",
        "cluster",
        "ended_sessions",
        "installation",
        "leases",
        "login_codes",
        "login_links",
        "users",
    }
)
"""Tables in which a service has rows before anybody uses it."""
_MARK = "installation"
"""Table by which a database of this service is known."""
_TABLES = Base.metadata.sorted_tables


def copy_database(
    source_url: str,
    target_url: str,
    *,
    now: float,
    holds_writers: bool = False,
    finish: Callable[[Connection], object] = lambda _: None,
) -> dict[str, int]:
    """Copy all rows to a database that nobody has used yet, and return their number by table.

    The copy is of one moment: the source may be in use. The target has either all rows, or those of
    before.

    Args:
        source_url: database with the tables of this version.
        target_url: database without tables, or with those of a service that nobody has used.
        now: time in seconds since 1970.
        holds_writers: whether nobody may write to the source meanwhile, nor work on it.
        finish: called at the end of the transaction of the target.

    Raises:
        StartError: a database cannot be used, the target has been used already or is in use, or the
            source has other tables than this version.
    """
    check_file(source_url)
    check_target(target_url, now)
    upgrade(target_url)
    source, target = Database(source_url), Database(target_url)
    try:
        with _translated_errors():
            _check_revision(source)
            open_source = source.connect_writer if holds_writers else source.engine.connect
            with open_source() as reading, target.connect_writer() as writing:
                _prepare_source(reading, source_url, now, holds_writers=holds_writers)
                _check_unused(writing, target_url, now)
                counts = _copy_tables(reading, writing)
                finish(writing)
                return counts
    finally:
        source.close()
        target.close()


def check_target(url: str, now: float) -> None:
    """Check, without changing anything, that rows may be copied to a database.

    Raises:
        StartError: it belongs to another version or program, has been used, or a scheduler works on
            it.
    """
    if lacks_file(url):
        return
    database = Database(url)
    try:
        with _translated_errors(), database.engine.connect() as connection:
            check_tables(url)
            found = set(inspect(connection).get_table_names())
            if found and _MARK not in found:
                raise StartError(
                    f"the database {hide_password(url)} has tables of another program; name an"
                    " empty one"
                )
            if found:
                _check_unused(connection, url, now)
    finally:
        database.close()


def check_file(url: str) -> None:
    """Check that the file of a SQLite database exists; opening it would create an empty one.

    Raises:
        StartError: it does not.
    """
    if lacks_file(url):
        raise StartError(
            f"there is no database {make_url(url).database}; are ACCORDION_HOME and"
            " ACCORDION_DATABASE_URL right?"
        )


def count_rows(url: str) -> dict[str, int]:
    """Return the number of rows of each table of a database.

    Raises:
        StartError: the database cannot be read.
    """
    database = Database(url)
    try:
        with _translated_errors(), database.engine.connect() as connection:
            found = inspect(connection).get_table_names()
            return {
                table.name: _count_rows(connection, table)
                for table in _TABLES
                if table.name in found
            }
    finally:
        database.close()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate errors of the databases; rows stay out of the message.

    Raises:
        StartError: a database failed.
    """
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        raise StartError(f"a database failed ({reason}); nothing was stored") from error


def _check_revision(database: Database) -> None:
    """Check that a database has the tables of this version.

    Raises:
        StartError: it does not.
    """
    found = current(database)
    refuse_unreleased(found, f"the database {hide_password(database.url)}")
    if found != head():
        raise StartError(
            f"the database {hide_password(database.url)} has tables of version {found}, and this"
            f" program of version {head()}; use the program that the service runs"
        )


def _prepare_source(connection: Connection, url: str, now: float, *, holds_writers: bool) -> None:
    """Lift the limits of a long read, and keep writers out if asked.

    Raises:
        StartError: writers are to be kept out, and a scheduler works on the database.
    """
    if connection.dialect.name == "postgresql":
        lift_limits(connection)
        if holds_writers:
            names = ", ".join(f'"{table.name}"' for table in _TABLES)
            connection.execute(text(f"LOCK TABLE {names} IN SHARE MODE"))
    if holds_writers:
        _check_stopped(connection, url, now)


def _check_stopped(connection: Connection, url: str, now: float) -> None:
    lease = select(LeaseRow.owner).where(LeaseRow.expires_at > now)
    holder = connection.execute(lease).scalars().first()
    if holder is not None:
        raise StartError(
            f"the scheduler {holder} works on the database {hide_password(url)}; stop the service"
            " first"
        )


def _check_unused(connection: Connection, url: str, now: float) -> None:
    """Check that a database has no rows but those of the first start.

    Raises:
        StartError: it has others, or a scheduler works on it.
    """
    _check_stopped(connection, url, now)
    found = inspect(connection).get_table_names()
    counts = {
        table.name: _count_rows(connection, table)
        for table in _TABLES
        if table.name in found and table.name not in _FROM_THE_START
    }
    counts["users"] = _count_rows(connection, Base.metadata.tables["users"]) - 1
    used = [f"{name} {count}" for name, count in sorted(counts.items()) if count > 0]
    if used:
        raise StartError(
            f"the database {hide_password(url)} has been used (rows: {', '.join(used)}); name an"
            " empty one"
        )


def _copy_tables(source: Connection, target: Connection) -> dict[str, int]:
    for table in reversed(_TABLES):
        target.execute(table.delete())
    counts = {table.name: _copy_rows(source, target, table) for table in _TABLES}
    for table in _TABLES:
        arrived = _count_rows(target, table)
        if arrived != counts[table.name]:
            raise StartError(
                f"{counts[table.name]} rows of {table.name} were copied, and {arrived} arrived;"
                " nothing was stored"
            )
    _advance_sequences(target, counts)
    return counts


def _copy_rows(source: Connection, target: Connection, table: Table) -> int:
    count = 0
    options = {"yield_per": _ROWS_AT_ONCE}
    for rows in source.execute(select(table), execution_options=options).mappings().partitions():
        target.execute(table.insert(), [dict(row) for row in rows])
        count += len(rows)
    return count


def _count_rows(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _advance_sequences(target: Connection, counts: Mapping[str, int]) -> None:
    """Let PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    if target.dialect.name != "postgresql":
        return
    for table in _TABLES:
        column = table.autoincrement_column
        if column is not None and counts[table.name]:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            newest = select(func.max(column)).scalar_subquery()
            target.execute(select(func.setval(sequence, newest)))
