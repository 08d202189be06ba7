"""Plans of SELECT statements, in one form for SQLite and PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from service.store.models import Base

PRIMARY_KEY = "primary key"
SMALL_TABLES = frozenset({"cluster", "installation", "leases", "nodes", "quotas", "users"})
"""Tables that do not grow with the number of jobs: all of their rows may be read."""
_STEP_OF_SQLITE = re.compile(
    r"(?P<kind>SCAN|SEARCH) (?P<table>\w+)"
    r"(?: USING (?P<covering>COVERING )?(?:INDEX (?P<index>\w+)|(?P<rowid>INTEGER PRIMARY KEY))"
    r"(?: \((?P<condition>.*)\))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A step of a plan that reads rows of a table."""

    table: str
    index: str
    """Name of the index, or `primary key`; empty without one."""
    columns: tuple[str, ...]
    """Columns by which rows are looked up in the index."""
    is_covered: bool
    """Whether the index has all columns, so that no row is read."""
    is_whole: bool
    """Whether all rows of a table are read that grows with the number of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of one statement."""

    reads: tuple[Read, ...]
    num_sorts: int
    """Sorts of all rows of which a page is shown, other than that of the page itself."""

    def reads_all_rows(self) -> bool:
        """Whether it reads all rows of a table that grows with the number of jobs."""
        return any(read.is_whole for read in self.reads)


def explain(engine: Engine, statement: str, values: Any) -> Plan:
    """Plan of a statement, with the values that a cursor got."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return _explain_sqlite(connection, statement, values)
        # Most tables of a test are small: PostgreSQL would read them whole, whatever their indexes.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        rows = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values)
        [[[found]]] = rows.all()
        return _parse_postgres(found["Plan"])


def _explain_sqlite(connection: Connection, statement: str, values: Any) -> Plan:
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
    steps = [row[3] for row in rows]
    found = [match for step in steps if (match := _STEP_OF_SQLITE.match(step))]
    return Plan(
        reads=tuple(_read_of_sqlite(one) for one in found if one["table"] in Base.metadata.tables),
        # The last one sorts the rows of the page.
        num_sorts=max(sum("TEMP B-TREE" in step for step in steps) - 1, 0),
    )


def _read_of_sqlite(step: re.Match[str]) -> Read:
    index, table = step["index"] or "", step["table"]
    rowid = ("rowid",) if step["rowid"] else ()
    is_primary = bool(rowid) or index.startswith("sqlite_autoindex_")
    return Read(
        table=table,
        index=PRIMARY_KEY if is_primary else index,
        columns=_columns_in(table, step["condition"] or "") or rowid,
        is_covered=step["covering"] is not None,
        # In the order of an index, no more than a page is read.
        is_whole=step["kind"] == "SCAN" and not index and table not in SMALL_TABLES,
    )


def _parse_postgres(top: dict[str, Any]) -> Plan:
    nodes = list(_walk(top))
    return Plan(
        reads=tuple(
            _read_of_postgres(node, table, is_page)
            for node, table, is_page in nodes
            if table and node["Node Type"] not in {"Bitmap Heap Scan", "BitmapOr", "BitmapAnd"}
        ),
        num_sorts=sum(
            node["Node Type"].endswith("Sort") for node, _, is_page in nodes[2:] if is_page
        ),
    )


def _walk(
    node: dict[str, Any], table: str = "", *, is_page: bool = False
) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Nodes of a plan from its top; each with its table, and whether no more of its rows than those
    of a page are read.
    """
    kind = node["Node Type"]
    table = node.get("Relation Name", table if kind.startswith("Bitmap") else "")
    yield node, table, is_page
    # Anything else, such as a sort, reads all rows before it gives the first.
    is_page = kind == "Limit" or (is_page and kind in {"Append", "Subquery Scan"})
    for inner in node.get("Plans", ()):
        yield from _walk(inner, table, is_page=is_page)


def _read_of_postgres(node: dict[str, Any], table: str, is_page: bool) -> Read:
    index = node.get("Index Name", "")
    columns = _columns_in(table, node.get("Index Cond", ""))
    return Read(
        table=table,
        index=PRIMARY_KEY if index.startswith("pk_") else index,
        columns=columns,
        is_covered=node["Node Type"] == "Index Only Scan",
        is_whole=not columns and not (index and is_page) and table not in SMALL_TABLES,
    )


def _columns_in(table: str, condition: str) -> tuple[str, ...]:
    """Columns of a table that a condition names, in their order."""
    known = Base.metadata.tables[table].columns
    return tuple(dict.fromkeys(word for word in re.findall(r"\w+", condition) if word in known))
