"""Rows that replace those with the same primary key, without reading these first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Insert, Table, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from accordion_service.store.tables.models import Base


class Upserts:
    """Rows of one transaction that are inserted, or replace those with their primary keys, with one
    statement per table. Objects of the session do not see them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_postgresql = session.get_bind().dialect.name == "postgresql"
        self._rows: dict[type[Base], list[dict[str, Any]]] = {}

    def add(self, entity: type[Base], values: Mapping[str, Any]) -> None:
        """Add a row; columns without a value become null, and later rows win."""
        self._rows.setdefault(entity, []).append({**_empty_row(entity), **values})

    def write(self) -> None:
        """Write the rows that were added since the last call."""
        rows, self._rows = self._rows, {}
        # What the session has not written yet does not matter to these rows.
        with self._session.no_autoflush:
            for entity, values in rows.items():
                self._session.execute(
                    _build_statement(entity, is_postgresql=self._is_postgresql), values
                )


@cache
def _empty_row(entity: type[Base]) -> Mapping[str, None]:
    return dict.fromkeys(inspect(entity).local_table.c.keys())


@cache
def _build_statement(entity: type[Base], *, is_postgresql: bool) -> Insert:
    table: Table = inspect(entity).local_table  # type: ignore[assignment]
    keys = [column.name for column in table.primary_key]
    query = (postgresql if is_postgresql else sqlite).insert(table)
    others = {name: query.excluded[name] for name in _empty_row(entity) if name not in keys}
    statement: Insert = query.on_conflict_do_update(index_elements=keys, set_=others)
    return statement
