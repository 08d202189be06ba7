"""Proof that worker processes see the directory that their supervisor sees: a token written by one, read by all.

A node that has a directory of the same name to itself would keep its part of every checkpoint to itself, and each
checkpoint would count as done until the first worker is lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from workers.errors import StorageError

_TRIES = 5
_PAUSE_S = 0.5
"""Pause between two tries to read a token: a network filesystem may show a new file a moment later."""


def write_token(storage: Path, attempt: int) -> str:
    """Write the attempt's token into the job's directory, and return it.

    Raises:
        OSError: the directory cannot be written.
    """
    token = secrets.token_hex(16)
    storage.mkdir(parents=True, exist_ok=True)
    _file(storage, attempt).write_text(token, encoding="ascii")
    return token


def check_token(
    storage: Path, attempt: int, *, token: str, host: str, pause: Callable[[float], object] = time.sleep
) -> None:
    """Check that this process, on that host, reads the token that the supervisor wrote.

    Raises:
        StorageError: it does not.
    """
    if not sees_token(lambda: _file(storage, attempt).read_bytes(), token=token, pause=pause):
        raise StorageError(not_shared(str(storage), host))


def sees_token(read: Callable[[], bytes], *, token: str, pause: Callable[[float], object] = time.sleep) -> bool:
    """Whether `read` returns the token, now or a moment later."""
    for attempt in range(_TRIES):
        if attempt:
            pause(_PAUSE_S)
        try:
            if read() == token.encode():
                return True
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
    return False


def not_shared(place: str, host: str) -> str:
    """Say that a node does not see the storage of a job."""
    return (
        f"node {host} does not see the storage of this job, {place}: a checkpoint would lose the part that is saved "
        "there; mount the same directory on all nodes, or, for checkpoints alone, set checkpoint.storage to a place "
        "that all nodes reach, such as s3://bucket/path"
    )


def _file(storage: Path, attempt: int) -> Path:
    return storage / f"attempt-{attempt}.token"


__all__ = ["check_token", "not_shared", "sees_token", "write_token"]
