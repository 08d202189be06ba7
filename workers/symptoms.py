"""What an error says: of whose process, and in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from workers.errors import ProcessLost, WorkerError
from workers.plain_text import clean_text, clean_texts

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
    return clean_text(first if isinstance(error, WorkerError) else f"{type(error).__name__}: {first}")


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Clean the texts of what the block raises: Ray ends a process whose error and traceback are not Unicode."""
    try:
        yield
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        if clean_text(told) == told:
            raise
        raise _cleaned(error) from None


def _cleaned(error: Exception) -> Exception:
    """The error without the chain that led to it, of the same type where that can hold a cleaned text."""
    if isinstance(error, WorkerError):
        return type(error)(*clean_texts(error.args))
    error.args = clean_texts(error.args)
    error.__cause__ = error.__context__ = None
    error.__notes__ = []
    return error if clean_text(str(error)) == str(error) else RuntimeError(sentence_of(error))
