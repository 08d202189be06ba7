"""Names of files that are written for a job; pure."""

from __future__ import annotations

import re


def name_file(job_name: str, suffix: str) -> str:
    """Return the name of a job's file with characters that every file system accepts; it is never
    hidden, is no option of a command, and names no other folder.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", job_name).lstrip(".-")
    return f"{stem or 'job'}{suffix}"
