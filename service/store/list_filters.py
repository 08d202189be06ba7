"""Filters of a list of jobs by columns that have an index each, as conditions of its query.

SQLite does not know how many jobs have a value, and would choose any index that a filter has. So
one column leads, and conditions on the others are hidden from its choice of an index: the only
filtered column, or else `archived`, whose index `ix_jobs_list` has all filtered columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from operator import eq, ge, lt
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import ReturnTypeFromArgs

from service.store.models import JobRow

_Condition = Callable[[ColumnElement[Any], Any], ColumnElement[bool]]
_NO_INDEX = frozenset({"kind", "visible_to"})
"""Filters of which no index holds the jobs in the order of lists."""
_SURROGATES = 0xD800, 0xDFFF
"""First and last of the code points that no text has."""


def list_filters(wanted: object) -> dict[str, Any]:
    """Return the filters of a `JobFilter` that are set, by name."""
    values = {name: getattr(wanted, name) for name in _FILTERS}
    return {name: value for name, value in values.items() if value not in (None, (), [])}


def find_leading(filters: Mapping[str, Any]) -> str:
    """Return the column whose index serves a list with these filters."""
    columns = {_FILTERS[name][0].key for name in filters.keys() - _NO_INDEX}
    return str(columns.pop()) if len(columns) == 1 else JobRow.archived.key


def is_range(filters: Mapping[str, Any], leading: str) -> bool:
    """Return whether the list needs a range of the leading column, which a condition on `archived`
    cannot narrow.
    """
    return leading in {"started_at", "ended_at"} or (leading == "name" and "name" not in filters)


def build_conditions(
    filters: Mapping[str, Any], leading: str | None = None
) -> list[ColumnElement[bool]]:
    """Return the conditions of filters; with a leading column, the others are hidden."""
    conditions = []
    for name, value in filters.items():
        column, condition = _FILTERS[name]
        shown = column if leading in {None, column.key} else _hidden(column)
        conditions.append(condition(shown, value))
    return conditions


def find_successor(prefix: str) -> str | None:
    """Return the first text, by code points, after all that start with a prefix; None if there is
    none.
    """
    rest = prefix.rstrip(chr(sys.maxunicode))
    if not rest:
        return None
    first, last = _SURROGATES
    code = ord(rest[-1]) + 1
    return rest[:-1] + chr(last + 1 if first <= code <= last else code)


class _hidden(ReturnTypeFromArgs[Any]):  # noqa: N801  # named as SQLAlchemy names functions
    """Value of a column; SQLite uses no index for it."""

    inherit_cache = True


@compiles(_hidden)
def _compile_hidden(element: _hidden, compiler: SQLCompiler, **options: Any) -> str:
    [column] = element.clauses
    sign = "+" if compiler.dialect.name == "sqlite" else ""
    return f"{sign}{compiler.process(column, **options)}"


def _is_in(column: ColumnElement[Any], values: Sequence[str]) -> ColumnElement[bool]:
    return column.in_(values)


def _is_visible(owner: ColumnElement[Any], user: str) -> ColumnElement[bool]:
    return or_(owner == user, owner.is_(None))


def _has_prefix(column: ColumnElement[Any], prefix: str) -> ColumnElement[bool]:
    """A range, which an index serves; LIKE would ignore case in SQLite."""
    beyond = find_successor(prefix)
    return column >= prefix if beyond is None else and_(column >= prefix, column < beyond)


_FILTERS: Mapping[str, tuple[Any, _Condition]] = {
    "statuses": (JobRow.status, _is_in),
    "desired": (JobRow.desired, _is_in),
    "reasons": (JobRow.reason, _is_in),
    "name": (JobRow.name, eq),
    "name_prefix": (JobRow.name, _has_prefix),
    "kind": (JobRow.kind, eq),
    "owner": (JobRow.owner, eq),
    "visible_to": (JobRow.owner, _is_visible),
    "priority": (JobRow.priority, eq),
    "workers": (JobRow.workers, eq),
    "task": (JobRow.task, eq),
    "method": (JobRow.method, eq),
    "policy": (JobRow.policy, eq),
    "cloned_from": (JobRow.cloned_from, eq),
    "started_after": (JobRow.started_at, ge),
    "started_before": (JobRow.started_at, lt),
    "ended_after": (JobRow.ended_at, ge),
    "ended_before": (JobRow.ended_at, lt),
}
"""Column and condition of each filter, by the name of its field in `JobFilter`."""

__all__ = ["build_conditions", "find_leading", "find_successor", "is_range", "list_filters"]
