"""Classifies worker errors: process died, peer lost, storage failed, or the task's own."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path

from accordion_workers.common.errors import ProcessCrashed, ProcessLost

_SIGNS_OF_DEATH = frozenset(
    {
        "RayActorError",
        "ActorUnavailableError",
        "NodeDiedError",
        "OwnerDiedError",
        "WorkerCrashedError",
        "OutOfMemoryError",
    }
)
"""Names of error classes, so that this module loads without Ray."""
_NODE_LOSS = re.compile(r"\bnode (has |was |is )?(died|dead|terminated|removed)", re.IGNORECASE)
_EXIT_CODE = re.compile(r"exit code (\d+)")
_ENDED = "connection error code 2"
"""Part of Ray's message for a process that was killed, crashed, or closed its connection to Ray."""
_STORAGE_AWAY = frozenset(
    {
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ENODEV,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTCONN,
        errno.EROFS,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Error numbers of a directory that is full or not mounted; the job waits for it."""
_STORAGE_CODE = tuple(Path(__file__).parents[1] / name for name in ("checkpoint", "hub"))
"""Folders whose code reads and writes the storage of a job."""


def is_process_death(error: BaseException) -> bool:
    """Whether the error says that a process is gone rather than that code in it raised."""
    if isinstance(error, ProcessLost):
        return True
    return not _SIGNS_OF_DEATH.isdisjoint(_ray_types(error))


def is_node_loss(error: BaseException) -> bool:
    """Whether a process is gone because its node is."""
    return "NodeDiedError" in _ray_types(error) or (
        is_process_death(error) and bool(_NODE_LOSS.search(str(error)))
    )


def is_lone_process_death(error: BaseException) -> bool:
    """Whether a process died while its node stayed; one that we killed for its silence does not
    count.
    """
    died = not {"ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"}.isdisjoint(
        _ray_types(error)
    )
    return died and not is_node_loss(error)


def is_peer_loss(error: BaseException) -> bool:
    """Whether a collective broke because a peer went away. Gloo raises plain RuntimeErrors, known
    by their source.

    A bad descriptor does not count: this process closed it itself.
    """
    if is_bad_descriptor(error):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"DistError", "PeerUnfit"}) or "gloo/transport" in str(error)


def is_bad_descriptor(error: BaseException) -> bool:
    """Whether an error says that a file descriptor in use was closed in this process."""
    return "Bad file descriptor" in str(error)


def is_storage_outage(error: BaseException) -> bool:
    """Whether an error says that a directory is full or not reachable now."""
    return isinstance(error, OSError) and getattr(error, "errno", None) in _STORAGE_AWAY


def is_storage_error(error: BaseException) -> bool:
    """Whether an error that a worker process passed on is the storage's; it has turned those of
    user code into `TaskRaised`. A bad descriptor was closed by the process itself.
    """
    return isinstance(error, OSError) and error.errno != errno.EBADF


def is_raised_by_storage(error: BaseException) -> bool:
    """Whether code that reads or writes the job's storage raised the error, rather than user code.

    Only the process that raised the error can tell: Ray sends errors without their frames.
    """
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    return is_storage_error(error) and any(
        file.is_relative_to(folder) for file in files for folder in _STORAGE_CODE
    )


def may_be_killed(error: BaseException) -> bool:
    """Whether a process was killed or lost for no known fault of the code in it, such as a crash or
    the use of too much memory.
    """
    is_own = isinstance(error, ProcessCrashed) or "OutOfMemoryError" in _ray_types(error)
    return is_process_death(error) and not is_own


def describe_death(error: BaseException) -> str:
    """Describe the cause of a death as a clause to append to a sentence; empty if it is unknown."""
    text = str(error)
    if isinstance(error, ProcessLost):
        return f": {text}"
    if is_node_loss(error):
        return ": its node is gone"
    if found := _EXIT_CODE.search(text):
        return f": it ended with exit code {found[1]}"
    if _ENDED in text:
        return (
            ": it was killed by a signal (perhaps SIGKILL, which the kernel sends when memory runs"
            " out), or its connection to Ray was closed"
        )
    return ""


def _ray_types(error: BaseException) -> set[str]:
    return {
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "ray"
    }
