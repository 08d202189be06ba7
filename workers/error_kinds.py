"""Classifies errors (process died, peer lost, user code raised) and formats them with their
place.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
_NODE_LOSS = re.compile(r"\bnode (has |was |is )?(died|dead|terminated|removed)", re.IGNORECASE)
_EXIT_CODE = re.compile(r"exit code (\d+)")
_ENDED = "connection error code 2"
"""Part of Ray's message for a process that was killed, crashed, or closed its connection to Ray."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_OURS = Path(__file__).parent


def is_dead(error: BaseException) -> bool:
    """Whether the error says that a process is gone rather than that code in it raised."""
    if isinstance(error, ProcessLost):
        return True
    return not _SIGNS_OF_DEATH.isdisjoint(_ray_types(error))


def _is_node_loss(error: BaseException) -> bool:
    """Whether a process is gone because its node is."""
    return "NodeDiedError" in _ray_types(error) or (
        is_dead(error) and bool(_NODE_LOSS.search(str(error)))
    )


def died_alone(error: BaseException) -> bool:
    """Whether a process died while its node stayed; one that we killed for its silence does not
    count.
    """
    died = not {"ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"}.isdisjoint(
        _ray_types(error)
    )
    return died and not _is_node_loss(error)


def is_collateral(error: BaseException) -> bool:
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


def death_of(error: BaseException) -> str:
    """Describe the cause of a death as a clause to append to a sentence; empty if it is unknown."""
    text = str(error)
    if isinstance(error, ProcessLost):
        return f": {text}"
    if _is_node_loss(error):
        return ": its node is gone"
    if found := _EXIT_CODE.search(text):
        return f": it ended with exit code {found[1]}"
    if _ENDED in text:
        return (
            ": it was killed, usually by the kernel when memory ran out, or its connection to Ray"
            " was closed"
        )
    return ""


def sentence_of(error: BaseException) -> str:
    """One line that every file and database takes."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return clean_text(
        first if isinstance(error, WorkerError) else f"{type(error).__name__}: {first}"
    )


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Clean the texts of errors raised in the block: Ray kills a process whose error is not
    Unicode.
    """
    try:
        yield
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        if clean_text(told) == told:
            raise
        raise _cleaned(error) from None


def _cleaned(error: Exception) -> Exception:
    """Return the error without its chain, of the same type if that can hold a cleaned text."""
    if isinstance(error, WorkerError):
        return type(error)(*clean_texts(error.args))
    error.args = clean_texts(error.args)
    error.__cause__ = error.__context__ = None
    error.__notes__ = []
    return error if clean_text(str(error)) == str(error) else RuntimeError(sentence_of(error))


def raised_at(error: BaseException) -> str:
    """Format an error as `Type: message (file.py:line)`, with the innermost line of user code."""
    place = code_place(traceback.extract_tb(error.__traceback__))
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")


def code_place(frames: traceback.StackSummary) -> str:
    """Return `file.py:line` of the innermost user code or built-in task; else of the innermost
    frame.
    """
    own = [frame for frame in frames if is_user_code(frame.filename)] or list(frames[-1:])
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def is_user_code(filename: str) -> bool:
    """Whether a file holds user code or a built-in task, rather than installed packages or this
    project.
    """
    file = Path(filename)
    if filename.startswith(("<", *_INSTALLED)) or "site-packages" in file.parts:
        return False
    if file.is_relative_to(_OURS):
        return file.relative_to(_OURS).parts[0] in {"tasks", "models", "data"}
    return not file.is_relative_to(_OURS.parent / "accordion")


def _ray_types(error: BaseException) -> set[str]:
    return {
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "ray"
    }
