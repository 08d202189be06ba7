"""The rows of a query, in one call."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import Select

from accordion_service.store.engine.database import Database

Row = TypeVar("Row")


def read_rows(database: Database, query: Select[Row]) -> list[Row]:
    """Return all rows of a query."""
    with database.read() as session:
        return list(session.scalars(query))


def read_first_row(database: Database, query: Select[Row]) -> Row | None:
    """Return the first row of a query; None if it has none."""
    return next(iter(read_rows(database, query.limit(1))), None)
