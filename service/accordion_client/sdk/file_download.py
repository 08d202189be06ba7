"""Downloads a model or a report to a file."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO

import httpx2

DOWNLOAD_TIMEOUT_S = 660.0
"""Timeout of the first byte of a model, which the service exports first."""
REPORT_TIMEOUT_S = 120.0
"""Timeout of the first byte of a report, which may wait for others to be built."""


async def download_file(opening: AbstractAsyncContextManager[httpx2.Response], file: Path) -> str:
    """Write a response to a file, which appears once it is complete; return the name of the
    checkpoint that a model is from, empty for other files.

    Raises:
        OSError: the file cannot be written.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("wb") as opened:  # first: an export takes long
            name = await _receive_file(opening, opened)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return name


async def _receive_file(
    opening: AbstractAsyncContextManager[httpx2.Response], opened: BinaryIO
) -> str:
    async with opening as response:
        async for chunk in response.aiter_bytes():
            opened.write(chunk)
    return response.headers.get("Accordion-Checkpoint", "")
