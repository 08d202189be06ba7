"""Checks that worker processes see the same directory as their supervisor: one process writes a
token, all others read it.

On a node with a directory of its own under the same path, the node's part of every checkpoint would
stay there, and checkpoints would count as complete until the first worker is lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from accordion_workers.common.errors import StorageNotShared

_TRIES = 5
_PAUSE_S = 0.5
"""Seconds between two tries to read a token; a network file system may show a new file with a
delay.
"""


def write_token(storage: Path, attempt: int) -> str:
    """Write the attempt's token into the job's directory, and return it.

    Raises:
        OSError: the directory cannot be written.
    """
    token = secrets.token_hex(16)
    storage.mkdir(parents=True, exist_ok=True)
    _token_file(storage, attempt).write_text(token, encoding="ascii")
    return token


def check_token(
    storage: Path,
    attempt: int,
    *,
    token: str,
    host: str,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Check that this process can read the token that the supervisor wrote; `host` is named in the
    error.

    Raises:
        StorageNotShared: the token is not there, or is another one.
        OSError: the directory cannot be read now.
    """
    if not sees_token(lambda: _token_file(storage, attempt).read_bytes(), token=token, pause=pause):
        raise StorageNotShared(not_shared(str(storage), host))


def sees_token(
    read: Callable[[], bytes], *, token: str, pause: Callable[[float], object] = time.sleep
) -> bool:
    """Return whether `read` returns the token within a few tries."""
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
    """Return the error message for a node that does not see the storage of a job."""
    return (
        f"node {host} does not see the storage of this job, {place}: a checkpoint would lose the"
        " part that is saved there; mount the same directory on all nodes, or, for checkpoints"
        " alone, set checkpoint.storage to a place that all nodes reach, such as s3://bucket/path"
    )


def _token_file(storage: Path, attempt: int) -> Path:
    return storage / f"attempt-{attempt}.token"


__all__ = ["check_token", "not_shared", "sees_token", "write_token"]
