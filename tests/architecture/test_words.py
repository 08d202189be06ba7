"""Names and prose: what a module, a function, a docstring and a test may be called or begin with.
An exception needs a row in a list here, with its reason.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations

import pytest

from tests.architecture.source import ROOT, functions, module_name, parse, source_files

TEST_NAME_LENGTH = 80
FEATURES = {
    "accounts": "users and their tokens",
    "audit": "who changed what",
    "autoscaling": "nodes that are requested from Ray's autoscaler",
    "backups": "copies of the service's state",
    "batches": "actions on several jobs",
    "cluster": "nodes and what can be named in a spec",
    "code": "modules that users upload",
    "deletion": "jobs that users delete",
    "guests": "training that registered itself",
    "history": "what a job has done so far",
    "history_columns": "the whole history of a job, thinned",
    "job_labels": "labels of jobs",
    "jobs": "jobs",
    "loggers": "services that get the metrics of jobs",
    "login": "logins of browsers and command lines",
    "login_codes": "codes that log in a command line",
    "login_links": "links that log in a browser",
    "metrics": "what Prometheus reads",
    "nodes": "nodes and whether they take workers",
    "overrides": "levels that users set",
    "plans": "predictions before a job runs",
    "queue": "jobs that wait, and what for",
    "quotas": "what users may hold at the same time",
    "report": "the result of a job as one page",
    "secrets": "values that jobs get and nobody can read back",
    "settings": "what an operator configures",
    "steering": "changes of existing jobs, which stop, continue or resize them",
    "time_limits": "how long a job may take",
    "webhooks": "messages to other programs",
    "why": "what holds a job up",
}
"""Features of the service: each has this one name in every room that has a part of it."""
SHARED_MODULE_NAMES = {
    "checkpoints": "checkpoints: those of Ray Train, and which ones of a job are kept",
    "cifar": "a data set and the task that trains on it",
    "digits": "a data set and the task that trains on it",
    "errors": "the errors of a package",
    "language": "language models and the tasks that train them",
    "loop": "the loop that a process runs until it ends",
    **dict.fromkeys(
        ("accelerate", "lightning", "transformers"), "a framework: in a script, and in a job"
    ),
    "process": "the entry point of a process",
    "objective": "the metric by which models are compared: how a job names it, and its values",
    "retries": "when what failed is tried again",
    "warm_start": "the model to start with: how a job names it, and how it is loaded",
}
"""Other base names that several modules may have, because all of them deal with the same thing."""
SHARED_CLASS_NAMES = {
    "AccordionCallback": "the callback of a framework: of Lightning and of Transformers",
    "NotFound": "status 404: in the service that raises it and in its client",
}
"""Names that several public classes may have, because they mean the same thing."""
ONE_WORD_FUNCTIONS = {
    "accordion.attach": "the call a training script adds; the library's public entry point",
    "accordion_client.connect": "the entry point of the SDK",
    "accordion_ray.attach": "the same call for scripts of Ray Train",
}
"""Functions of one word that may be imported without their module."""

ELLIPTICAL = re.compile(
    r"(also|and|as|but|by|none|of|or|same|so|the same|those|too)\b"  # Needs the line above it.
    r"|both( since|,)"
    r"|((?!\.\s).)*\blikewise\b",  # Anywhere in the first sentence.
    re.IGNORECASE | re.DOTALL,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees(folder: str = "") -> Iterator[tuple[str, ast.Module]]:
    """Modules and syntax trees of the packages, or of the Python files in `folder`."""
    paths = sorted((ROOT / folder).rglob("*.py")) if folder else source_files()
    return ((module_name(path), parse(path)) for path in paths)


def package(module: str) -> str:
    return module.partition(".")[0]


def homonyms(modules: list[str]) -> dict[str, list[str]]:
    """Base names that several modules have, and those modules."""
    homes = defaultdict(list)
    for module in modules:
        homes[module.rpartition(".")[2]].append(module)
    return {name: found for name, found in homes.items() if len(found) > 1}


def share_a_room(modules: list[str]) -> bool:
    """Whether one of the modules is in the room of another one, or in a folder of that room."""
    rooms = [f"{module.rpartition('.')[0]}." for module in modules if module.count(".") > 1]
    return any(first.startswith(second) for first, second in permutations(rooms, 2))


def mistaken_homonyms(modules: list[str]) -> dict[str, list[str]]:
    """Homonyms that deal with two things, or with one thing twice in one room."""
    explained = FEATURES.keys() | SHARED_MODULE_NAMES.keys()
    return {
        name: found
        for name, found in homonyms(modules).items()
        if name not in explained or share_a_room(found)
    }


def docstrings(tree: ast.Module) -> list[str]:
    """All docstrings of a module, attribute docstrings too."""
    return [
        statement.value.value.strip()
        for node in ast.walk(tree)
        for statement in (node.body if isinstance(getattr(node, "body", None), list) else [])
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def elliptical_docstrings(tree: ast.Module) -> list[str]:
    """First lines of docstrings that need the line above them."""
    return [text.splitlines()[0] for text in docstrings(tree) if ELLIPTICAL.match(text)]


def one_word_functions(module: str, tree: ast.Module) -> set[str]:
    """Public functions of one word, unless the module has that name."""
    names = {node.name for node in tree.body if isinstance(node, Function)}
    return {f"{module}.{name}" for name in names - {module.rpartition(".")[2]} if name.isalpha()}


def imported_names(tree: ast.Module) -> set[str]:
    """Dotted names that a module imports from others."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def one_word_imports(modules: list[tuple[str, ast.Module]]) -> set[str]:
    """Functions of one word that some module imports without their module."""
    words = {name for module, tree in modules for name in one_word_functions(module, tree)}
    return words & {name for _, tree in modules for name in imported_names(tree)}


def by_package(name: str) -> str:
    """`package.function` of a dotted name: stable when the module moves."""
    return f"{package(name)}.{name.rpartition('.')[2]}"


def long_test_names(tree: ast.Module) -> list[str]:
    names = [function.name for function in functions(tree)]
    return [n for n in names if n.startswith("test_") and len(n) > TEST_NAME_LENGTH]


def test_modules_of_one_name_deal_with_one_thing() -> None:
    modules = [module_name(path) for path in source_files() if path.stem != "__init__"]
    assert mistaken_homonyms(modules) == {}
    assert FEATURES.keys() | SHARED_MODULE_NAMES.keys() == homonyms(modules).keys()


def test_classes_of_one_name_mean_one_thing() -> None:
    classes = [
        f"{module}.{node.name}"
        for module, tree in trees()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert homonyms(classes).keys() == SHARED_CLASS_NAMES.keys()


def test_docstrings_stand_alone() -> None:
    found = {module: elliptical_docstrings(tree) for module, tree in [*trees(), *trees("tests")]}
    assert {module: texts for module, texts in found.items() if texts} == {}


def test_functions_of_one_word_are_called_through_their_module() -> None:
    found = {by_package(name) for name in one_word_imports(list(trees()))}
    assert found == ONE_WORD_FUNCTIONS.keys()


def test_names_of_tests_fit_into_a_report() -> None:
    long = {module: long_test_names(tree) for module, tree in trees("tests")}
    assert {module: names for module, names in long.items() if names} == {}


def test_a_planted_homonym_is_found() -> None:
    assert homonyms(
        ["workers.ledger", "accordion_service.store.ledger", "accordion_service.api.app"]
    ) == {"ledger": ["workers.ledger", "accordion_service.store.ledger"]}


@pytest.mark.parametrize(
    ("modules", "is_mistaken"),
    [
        (["accordion_service.api.webhooks", "accordion_service.store.reads.webhooks"], False),
        (
            ["accordion_service.store.reads.webhooks", "accordion_service.store.writes.webhooks"],
            False,
        ),
        (["accordion_service.api.webhooks", "accordion_service.api.dashboard.webhooks"], True),
        (["accordion_workers.hub.ledger", "accordion_service.store.ledger"], True),
        (["accordion_service.errors", "accordion_client.sdk.errors"], False),
    ],
)
def test_a_feature_has_one_name_and_each_room_one_module_of_it(
    modules: list[str], is_mistaken: bool
) -> None:
    assert bool(mistaken_homonyms(modules)) == is_mistaken


def test_planted_elliptical_docstrings_are_found() -> None:
    planted = '"""Of a job."""\nA = 1\n"""Offset."""\nclass B:\n    c: int\n    """Likewise."""\n'
    assert elliptical_docstrings(ast.parse(planted)) == ["Of a job.", "Likewise."]


@pytest.mark.parametrize(
    ("text", "is_elliptical"),
    [
        ("By phase.", True),
        ("None for the first group.", True),
        ("Both, since the start.", True),
        ("Seconds without a report, likewise.", True),
        ("Both ranks return a value.", False),
        ("Seconds without a report. Likewise for guests.", False),
    ],
)
def test_openings_that_need_the_line_above_are_elliptical(text: str, is_elliptical: bool) -> None:
    assert bool(elliptical_docstrings(ast.parse(f'"""{text}"""'))) == is_elliptical


def test_a_planted_import_of_a_one_word_function_is_found() -> None:
    archive = (
        "workers.archive",
        ast.parse("def pack(): ...\ndef unpack(): ...\ndef archive(): ..."),
    )
    user = ("workers.code", ast.parse("from workers.archive import archive, pack"))
    through_module = ("workers.job", ast.parse("from workers import archive\narchive.unpack()"))
    assert one_word_imports([archive, user, through_module]) == {"workers.archive.pack"}


def test_a_planted_long_test_name_is_found() -> None:
    names = ["test_" + "x" * 75, "test_" + "y" * 76]
    tree = ast.parse("".join(f"def {name}(): ...\n" for name in names))
    assert long_test_names(tree) == names[1:]
