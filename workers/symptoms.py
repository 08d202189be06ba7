"""What an error says of whose fault it was: its own process, another one that is gone, or none of them."""

from __future__ import annotations

from workers.errors import ProcessLost

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
