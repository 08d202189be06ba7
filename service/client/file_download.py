"""Downloads a model to a file."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2

from service.client.answers import raise_for_status, translate_errors

DOWNLOAD_TIMEOUT_S = 660.0
"""Timeout of the first byte of a model, which the service exports first."""


def download_file(
    http: httpx2.Client, url: str, *, path: str, file: Path, params: dict[str, str]
) -> str:
    """Write a model to a file, which appears once it is complete; return its checkpoint's name.

    Raises:
        OSError: the file cannot be written.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with (
            draft.open("wb") as opened,  # first: an export takes long
            translate_errors(url),
            http.stream("GET", path, params=params, timeout=DOWNLOAD_TIMEOUT_S) as response,
        ):
            raise_for_status(response)
            for chunk in response.iter_bytes():
                opened.write(chunk)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return response.headers.get("Accordion-Checkpoint", "")
