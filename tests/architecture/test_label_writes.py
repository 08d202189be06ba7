"""Rows of jobs are written as objects: only then the table of labels follows."""

from __future__ import annotations

import ast

from tests.architecture.source import module_name, parse, source_files

WITHOUT_OBJECTS = {
    "service.backup": "versions of orders",
    "service.store.node_rows": "versions of orders and of the row",
}
"""Modules that write rows of jobs by statements, and the columns: none that `job_labels` copies."""


def writes_without_objects(tree: ast.Module) -> bool:
    """Return whether a module has a statement that inserts or updates rows of jobs."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id in {"insert", "update"}
        and ast.unparse(call.args[0]).partition(".")[0] == "JobRow"
        for call in calls
    )


def test_statements_write_no_column_that_the_table_of_labels_copies() -> None:
    found = {module_name(path) for path in source_files() if writes_without_objects(parse(path))}
    assert found == WITHOUT_OBJECTS.keys()


def test_a_planted_statement_is_found() -> None:
    assert writes_without_objects(ast.parse("s.execute(update(JobRow).values(labels={}))"))
    assert writes_without_objects(ast.parse("s.execute(insert(JobRow.__table__), rows)"))
    assert not writes_without_objects(ast.parse("s.execute(update(LeaseRow).values(token=1))"))
