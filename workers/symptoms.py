"""What an error says: of whose process, and in one line."""

from __future__ import annotations

from workers.errors import ProcessLost, WorkerError

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
"""By name, so that this module loads without Ray."""


def is_dead(error: BaseException) -> bool:
    """Whether the error says that a process is gone rather than that code in it raised."""
    if isinstance(error, ProcessLost):
        return True
    rays = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "ray"}
    return not _SIGNS_OF_DEATH.isdisjoint(rays)


def is_collateral(error: BaseException) -> bool:
    """Whether a collective broke because a peer went away. Gloo raises plain RuntimeErrors, known by their source."""
    return any(kind.__name__ == "DistError" for kind in type(error).__mro__) or "gloo/transport" in str(error)


def sentence_of(error: BaseException) -> str:
    """One line that every file and database takes."""
    first = (str(error).strip() or "no message").splitlines()[0]
    text = first if isinstance(error, WorkerError) else f"{type(error).__name__}: {first}"
    return text.encode(errors="replace").decode()
