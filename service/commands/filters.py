"""Filters of commands that list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer


def refuse_empty(filters: Mapping[str, Any], options: Mapping[str, str], *, without: str) -> None:
    """Check that no filter is empty, as with a variable of the shell that is not set.

    Args:
        filters: filters by the name of the request's parameter.
        options: options by that name, where they are called otherwise.
        without: what leaving a filter out is good for, such as "to list all jobs".

    Raises:
        BadParameter: one is empty.
    """
    for name, value in filters.items():
        if value == "" or (isinstance(value, list) and "" in value):
            option = options.get(name, name.replace("_", "-"))
            raise typer.BadParameter(f"--{option} is empty; leave it out {without}")
