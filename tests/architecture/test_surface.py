"""What others may rely on: exported names, errors that survive pickling, and the folders."""

from __future__ import annotations

import importlib
import inspect
import pickle
import typing

import pytest

import accordion
from tests.architecture.source import PACKAGES, ROOT, module_name, source_files
from tests.programs import run_program

EXPORTED = {
    "AccordionError",
    "Config",
    "Controller",
    "Decision",
    "DetectorConfig",
    "LocalSteps",
    "Override",
    "Session",
    "Window",
    "Signal",
    "attach",
    "distributed_state",
    "load_distributed_state",
}
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    ".github",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "accordion",
    "constraints.txt",
    "deploy",
    "docs",
    "pyproject.toml",
    "service",
    "tests",
    "workers",
}
ALLOWED_TOP_LEVEL = TOP_LEVEL | {".dockerignore", ".gitattributes"}
VALUE_OF = {str: "a sentence", int: 3, float: 0.5}


def error_classes() -> list[type[Exception]]:
    # The integrations define no errors, and importing them takes the frameworks and seconds.
    paths = [
        path
        for path in source_files()
        if path.stem != "__main__" and path.parent.name != "integrations"
    ]
    modules = [importlib.import_module(module_name(path)) for path in paths]
    classes = (cls for module in modules for _, cls in inspect.getmembers(module, inspect.isclass))
    ours = (
        cls
        for cls in classes
        if issubclass(cls, Exception) and cls.__module__.split(".")[0] in PACKAGES
    )
    return sorted(set(ours), key=lambda cls: (cls.__module__, cls.__qualname__))


def example(cls: type[Exception]) -> Exception:
    """An error with a value of the right type for everything it must be given."""
    if cls.__init__ in {base.__init__ for base in (Exception, ValueError, RuntimeError, OSError)}:
        return cls("a sentence")
    hints = typing.get_type_hints(cls.__init__)
    asked = [p for p in inspect.signature(cls).parameters.values() if p.kind is not p.VAR_KEYWORD]
    values = {p.name: VALUE_OF.get(hints.get(p.name, str), "a sentence") for p in asked}
    by_name = {p.name: values[p.name] for p in asked if p.kind is p.KEYWORD_ONLY}
    return cls(*(values[p.name] for p in asked if p.kind is not p.KEYWORD_ONLY), **by_name)


def test_the_exported_names_of_the_library_are_these_and_load() -> None:
    assert set(accordion.__all__) == EXPORTED
    assert all(getattr(accordion, name).__name__ == name for name in EXPORTED)


def test_an_unknown_name_of_the_library_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        accordion.nothing  # noqa: B018


def test_every_error_survives_pickling() -> None:
    classes = error_classes()
    assert {cls.__module__.split(".")[0] for cls in classes} == set(PACKAGES)
    for cls in classes:
        error = example(cls)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (cls, str(error), vars(error))


def test_no_top_level_name_is_there_that_nobody_chose() -> None:
    listed = run_program(["git", "ls-files"], cwd=ROOT, check=True).stdout
    names = {line.split("/")[0] for line in listed.splitlines()}
    assert names - ALLOWED_TOP_LEVEL == set()
    assert TOP_LEVEL - names == set()
