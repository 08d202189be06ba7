"""Indexes of the table of jobs.

The index of a filter holds its jobs in the order of lists, and also what every list checks: whether
they are archived, and whose they are. `ix_jobs_list` holds all columns that lists filter by, so a
list with several filters reads no row that it does not show.
"""

from __future__ import annotations

from sqlalchemy import Index

_ORDER = ("archived", "created_at", "id")
_CHECKED = ("owner", "kind")
_FILTERED = (
    *("cloned_from", "name", "owner", "status", "reason", "desired", "priority", "workers"),
    *("task", "method", "policy", "started_at", "ended_at"),
)
"""Columns that lists filter by and that have an index each."""


def build_indexes() -> tuple[Index, ...]:
    """Return the indexes of the table of jobs."""
    rest = [column for column in _FILTERED if column not in _CHECKED]
    return (
        Index("ix_jobs_list", *_ORDER, *_CHECKED, *rest),
        *(Index(None, *_list_columns(column)) for column in _FILTERED),
        Index(None, "kind", "status"),
        Index(None, "checkpoints_removed_at", "ended_at"),
    )


def _list_columns(column: str) -> list[str]:
    return [column, *_ORDER, *(checked for checked in _CHECKED if checked != column)]


__all__ = ["build_indexes"]
