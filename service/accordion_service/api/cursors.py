"""Cursors of lists of jobs: the place of the last job that was listed."""

from __future__ import annotations

import base64
import binascii
import math

from accordion_service.errors import Invalid
from accordion_service.store.tables.models import JobRow


def format_cursor(row: JobRow) -> str:
    """Return the cursor of the jobs that are listed after this one."""
    return base64.urlsafe_b64encode(f"{row.created_at!r} {row.id}".encode()).decode()


def parse_cursor(cursor: str | None, pointer: str) -> tuple[float, str] | None:
    """Return the creation time and the id of the last job that was listed; None without a cursor.

    Raises:
        Invalid: the cursor is malformed; `pointer` is its place in the request.
    """
    if cursor is None:
        return None
    try:
        created_at, job_id = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
        before = float(created_at)
    except (ValueError, binascii.Error):
        before, job_id = math.nan, ""
    if not (math.isfinite(before) and job_id.isprintable()):
        raise Invalid(
            f"cursor is {cursor!r}; pass next_cursor of the previous page unchanged", pointer
        )
    return before, job_id
