"""Rows of jobs are written as objects: only then the table of labels follows."""

from __future__ import annotations

import ast

import pytest

from accordion_service.store.engine.job_labels import COPIED_COLUMNS
from tests.architecture.source import module_name, parse, source_files

WITHOUT_OBJECTS = {
    "accordion_service.backups.backups": {"orders_version", "version"},
    "accordion_service.store.writes.nodes": {"orders_version", "version"},
}
"""Modules that write rows of jobs by statements, and the columns."""
UNKNOWN = "?"
"""Stands for columns that are not given by name."""


def list_written(tree: ast.Module) -> set[str] | None:
    """Return the columns that a module writes to rows of jobs by statements; None without any."""
    statements = [node for node in ast.walk(tree) if is_statement(node)]
    if not statements:
        return None
    values = {
        id(root_of(call)): call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "values"
    }
    calls = [values.get(id(statement)) for statement in statements]
    return {column for call in calls for column in list_columns(call)}


def list_columns(values: ast.Call | None) -> set[str]:
    """Return the columns that a call of `values` names."""
    if values is None or values.args:
        return {UNKNOWN}
    return {keyword.arg or UNKNOWN for keyword in values.keywords}


def is_statement(node: ast.AST) -> bool:
    """Return whether a node inserts or updates rows of jobs."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"insert", "update"}
        and bool(node.args)
        and ast.unparse(node.args[0]).partition(".")[0] == "JobRow"
    )


def root_of(node: ast.AST) -> ast.AST:
    """Return the call with which a chain of methods begins."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def test_statements_write_no_column_that_the_table_of_labels_copies() -> None:
    written = {module_name(path): list_written(parse(path)) for path in source_files()}
    found = {module: columns for module, columns in written.items() if columns is not None}
    assert found == WITHOUT_OBJECTS
    assert not set().union(*found.values()) & {*COPIED_COLUMNS, "labels"}


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("s.execute(update(JobRow).where(a).values(labels={}, version=1))", {"labels", "version"}),
        ("s.execute(update(JobRow).values({'labels': {}}))", {UNKNOWN}),
        ("s.execute(update(JobRow).values(**columns))", {UNKNOWN}),
        ("s.execute(insert(JobRow.__table__), rows)", {UNKNOWN}),
        ("s.execute(update(LeaseRow).values(token=1))", None),
    ],
)
def test_the_columns_of_a_planted_statement_are_found(
    statement: str, columns: set[str] | None
) -> None:
    assert list_written(ast.parse(statement)) == columns
