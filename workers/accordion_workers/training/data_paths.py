"""Finds the data that a job names on this node."""

from __future__ import annotations

import os
from pathlib import Path

from accordion_workers.common.errors import CodeError
from accordion_workers.records.contract import Launch
from accordion_workers.spec.data import name_variable


def find_data(name: str, launch: Launch | None) -> Path:
    """Return the path of the data; `launch` is that of the job, None outside of one.

    Raises:
        CodeError: there are no data of this name.
    """
    variable = name_variable(name)
    found = os.environ.get(variable)
    if found:
        return Path(found)
    if launch is None or not launch.spec.data:
        raise CodeError(
            f"there are no data {name!r}: name their location in the job's `data`, or outside of a"
            f" job set {variable} to their path"
        )
    raise CodeError(
        f"the job has no data {name!r}, it has {', '.join(sorted(launch.spec.data))}; add their"
        " location to `data` of the spec, or correct the name"
    )


__all__ = ["find_data"]
