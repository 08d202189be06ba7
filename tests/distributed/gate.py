"""A storage whose writes stop at a gate, so that a test holds an upload where it wants; `gate:///directory`."""

from __future__ import annotations

import threading
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

OPEN = threading.Event()
"""While it is not set, this process opens files and writes nothing into them."""
OPEN.set()
REACHED = threading.Event()
"""A write stands at the gate, or has passed it."""
READ: list[str] = []
"""Names of the files that this process has read."""


class GatedFileSystem(LocalFileSystem):
    protocol = "gate"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("gate://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if "w" in mode:
            REACHED.set()
            OPEN.wait()
        else:
            READ.append(path.rpartition("/")[2])
        return file


fsspec.register_implementation("gate", GatedFileSystem, clobber=True)
