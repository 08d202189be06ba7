"""Load a task by its name: a row of the table of tasks, or a class of user code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from accordion.base.messages import OptionValue
from accordion_workers.common.errors import CodeError
from accordion_workers.tasks import TASKS
from accordion_workers.tasks.base import METHODS, Task
from accordion_workers.user_code.moved_imports import explain_moved_import


def load_task(name: str, options: Mapping[str, OptionValue]) -> Task:
    """Return the task of this name, called with the options.

    `name` is a row of `TASKS` or `module:Class`; the module must be importable by now.

    Raises:
        CodeError: there is no such module or class, or the class lacks a method.
    """
    class_path = TASKS[name].task if name in TASKS else name
    make = load_class(class_path)
    missing = [method for method in METHODS if not callable(getattr(make, method, None))]
    if missing:
        raise CodeError(
            f"class {class_path} has no {', '.join(missing)}; a task has {', '.join(METHODS)}"
        )
    return cast("Task", make(options))


def load_class(class_path: str) -> Any:
    """Return the class that `module:Class` names.

    Raises:
        CodeError: there is no such module, or it has no such class.
    """
    module_name, _, name = class_path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing module that user code itself imports is reported as it is.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            if moved := explain_moved_import(error):
                raise moved from error
            raise
        raise CodeError(
            f"there is no module {error.name!r} in the uploaded code or among what is installed;"
            " module files must lie at the top of the archive, or in the folders that their dotted"
            " name says"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        has = sorted(
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", "") == module_name
        )
        raise CodeError(
            f"module {module_name!r} has no class {name!r}; it has {', '.join(has) or 'none'}"
        )
    return found


__all__ = ["load_class", "load_task"]
