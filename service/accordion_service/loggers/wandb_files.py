"""Reads the files of offline W&B runs, to find out when they are written.

W&B's own process writes them, and goes on for a moment after a run was finished.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK_BYTES, _HEAD_BYTES = 32_768, 7
"""Size of a block, and of what precedes the file's first part and each part: checksum, length and
kind (the format of LevelDB's logs).
"""
_LAST_PARTS = (1, 4)
"""Kinds of parts with which a record ends."""
_POLL_S = 0.05


def wait_until_written(folder: Path, *, timeout_s: float) -> None:
    """Wait until the run below a folder is written to its end.

    Raises:
        TimeoutError: it was not in time.
    """
    end = time.monotonic() + timeout_s
    while not any(_is_complete(file) for file in folder.rglob("run-*.wandb")):
        if time.monotonic() >= end:
            raise TimeoutError(f"the run in {folder} was not written within {timeout_s:g} s")
        time.sleep(_POLL_S)


def read_records(data: bytes) -> Iterator[Record]:
    """Parse the records of a file; one whose end is missing is left out."""
    place, record = _HEAD_BYTES, b""
    while place + _HEAD_BYTES <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _HEAD_BYTES:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        place += _HEAD_BYTES
        if place + length > len(data):
            return
        record += data[place : place + length]
        place += length
        if kind in _LAST_PARTS:
            yield Record.FromString(record)
            record = b""


def _is_complete(file: Path) -> bool:
    return any(record.HasField("exit") for record in read_records(file.read_bytes()))


__all__ = ["read_records", "wait_until_written"]
