"""Copies all rows of one database to another one, whichever kind each is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.engine import make_url

from service.errors import StartError
from service.store.database import Database
from service.store.migrations import current, head, upgrade
from service.store.models import Base, LeaseRow, UserRow
from service.store.postgres import lift_limits

_ROWS_AT_ONCE = 200
_FROM_THE_START = frozenset({"cluster", "installation", "leases", "users"})
"""Tables in which a service has rows before anybody uses it."""


def copy_database(source_url: str, target_url: str) -> dict[str, int]:
    """Copy all rows to a database that nobody has used yet, and return their number by table.

    The copy is of one moment: the source may be in use. Tables of the target are created if they
    are missing. It has either all rows or those of before.

    Raises:
        StartError: a database cannot be used, the target has been used already, or the source has
            other tables than this version.
    """
    _check_file(source_url)
    upgrade(target_url)
    source, target = Database(source_url), Database(target_url)
    try:
        _check_revision(source)
        with source.engine.connect() as reading, target.connect_writer() as writing:
            if reading.dialect.name == "postgresql":
                lift_limits(reading)
            _check_unused(writing)
            return _copy_tables(reading, writing)
    finally:
        source.close()
        target.close()


def check_stopped(url: str, now: float) -> None:
    """Check that no scheduler works on a database.

    Raises:
        StartError: one does.
    """
    _check_file(url)
    database = Database(url)
    try:
        with database.read() as session:
            leases = session.scalars(select(LeaseRow).where(LeaseRow.expires_at > now)).all()
    finally:
        database.close()
    if leases:
        raise StartError(
            f"the scheduler {leases[0].owner} works on the database {hide_password(url)}; stop the"
            " service first"
        )


def hide_password(url: str) -> str:
    """Return the URL of a database for messages."""
    return make_url(url).render_as_string(hide_password=True)


def _check_unused(connection: Connection) -> None:
    """Check that a database has no rows but those of the first start.

    Raises:
        StartError: it has others.
    """
    counts = {
        table.name: _count_rows(connection, table)
        for table in Base.metadata.sorted_tables
        if table.name not in _FROM_THE_START
    }
    counts["users"] = max(0, _count_rows(connection, UserRow.metadata.tables["users"]) - 1)
    used = [f"{count} rows in {name}" for name, count in sorted(counts.items()) if count]
    if used:
        raise StartError(
            f"the database {hide_password(str(connection.engine.url))} has been used"
            f" ({', '.join(used)}); name an empty one in ACCORDION_DATABASE_URL or ACCORDION_HOME"
        )


def _check_file(url: str) -> None:
    """Check that the file of a SQLite database exists; opening it would create an empty one."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise StartError(
            f"there is no database {parsed.database}; are ACCORDION_HOME and ACCORDION_DATABASE_URL"
            " right?"
        )


def _check_revision(database: Database) -> None:
    found = current(database)
    if found != head():
        raise StartError(
            f"the database {hide_password(database.url)} has tables of version {found}, and this"
            f" program of version {head()}; use the program that the service runs"
        )


def _copy_tables(source: Connection, target: Connection) -> dict[str, int]:
    for table in reversed(Base.metadata.sorted_tables):
        target.execute(table.delete())
    counts = {}
    for table in Base.metadata.sorted_tables:
        counts[table.name] = _copy_rows(source, target, table)
        found = _count_rows(target, table)
        if found != counts[table.name]:
            raise StartError(
                f"{counts[table.name]} rows of {table.name} were copied, and {found} arrived;"
                " nothing is stored"
            )
    _advance_sequences(target, counts)
    return counts


def _copy_rows(source: Connection, target: Connection, table: Table) -> int:
    count = 0
    found = source.execute(select(table), execution_options={"yield_per": _ROWS_AT_ONCE}).mappings()
    for rows in found.partitions():
        target.execute(table.insert(), [dict(row) for row in rows])
        count += len(rows)
    return count


def _count_rows(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _advance_sequences(target: Connection, counts: Mapping[str, int]) -> None:
    """Let PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    if target.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None and counts[table.name]:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            newest = select(func.max(column)).scalar_subquery()
            target.execute(select(func.setval(sequence, newest)))
