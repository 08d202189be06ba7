"""Small things: limits on files, functions and modules. Raising one, or a row in a list here, is a
decision.
"""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import ROOT, functions, module_name, parse, source_files

FILE_LINES, BODY_LINES, POSITIONAL, NESTING, PUBLIC_NAMES = 500, 40, 3, 3, 10
TABLES_OF_RECORDS = {
    "accordion": "the public names of the library",
    "accordion.base.messages": "every message of the library",
    "accordion_service.schemas.accounts": "every body of users, tokens and the audit log",
    "accordion_service.schemas.jobs": "every body of the REST api",
    "accordion_client": "both clients, their options, and every error that they raise",
    "accordion_client.commands.cli_support": "options and output that the commands share",
    "accordion_client.commands.completion": "every kind of word that the shell completes",
    "accordion_service.schemas.format": "every value that the command line prints",
    "accordion_service.errors": "every error of the service, one a status",
    "accordion_service.store.tables.models": "every table of the database",
    "accordion_workers.common.errors": "every error of the training side",
    "accordion_workers.records.contract": "every record between service and workers",
    "accordion_workers.spec.job": "what a person asks for, part by part",
}
"""Modules that may have more public names than others, and what they list."""

_BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


def trees() -> list[tuple[str, ast.Module]]:
    return [(module_name(path), parse(path)) for path in source_files()]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (bool(names) and names[0] in {"self", "cls"})


def nesting(node: ast.AST) -> int:
    """Blocks inside blocks; an `elif` is no deeper than its `if`, and an inner function starts
    anew.
    """
    inner = (
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, ast.FunctionDef | ast.ClassDef)
    )
    return max((_depth(node, child) for child in inner), default=0)


def _depth(parent: ast.AST, child: ast.AST) -> int:
    is_elif = isinstance(parent, ast.If) and isinstance(child, ast.If) and [child] == parent.orelse
    return nesting(child) + (isinstance(child, _BLOCKS) and not is_elif)


def public_names(tree: ast.Module) -> list[str]:
    """What `__all__` says; else what the module defines without an underscore."""
    names: list[str] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        assigned = [target.id for target in targets if isinstance(target, ast.Name)]
        if "__all__" in assigned and isinstance(node, ast.Assign):
            return list(ast.literal_eval(node.value))
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else assigned
    return [name for name in names if not name.startswith("_")]


def test_no_file_is_longer_than_people_read() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in [*source_files(), *tests]
    }
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


@pytest.mark.parametrize(
    ("measure", "limit"), [(body_lines, BODY_LINES), (positional, POSITIONAL), (nesting, NESTING)]
)
def test_no_function_is_larger_than_its_limit(measure, limit) -> None:
    sizes = {
        f"{module}:{f.lineno} {f.name}": measure(f)
        for module, tree in trees()
        for f in functions(tree)
    }
    assert {place: size for place, size in sizes.items() if size > limit} == {}


def test_no_module_has_more_public_names_than_people_remember() -> None:
    counts = {module: len(public_names(tree)) for module, tree in trees()}
    assert {
        module for module, count in counts.items() if count > PUBLIC_NAMES
    } <= TABLES_OF_RECORDS.keys()


PLANTED = '''
def large(self, a, b, c, d):
    """Not counted."""
    for _ in a:
        if b:
            pass
        elif c:
            with d:
                try:
                    pass
                finally:
                    pass
'''


def test_the_measures_see_what_they_are_for() -> None:
    [function] = functions(ast.parse(PLANTED))
    assert (body_lines(function), positional(function), nesting(function)) == (9, 4, 4)
    assert public_names(ast.parse("A: int = 1\n_b = 2\ndef c(): ...\nimport d\n")) == ["A", "c"]
