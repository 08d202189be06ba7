"""Formats errors as one line, with the line of user code that raised them, in text that can be
stored.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import accordion
from accordion_workers.common.errors import WorkerError
from accordion_workers.common.plain_text import clean_text, clean_texts

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_OURS = Path(__file__).parents[1]
_LIBRARY = Path(accordion.__file__).parent
_SHOWN = 300
"""Characters of an error of several lines that its one line has at least."""


def format_error(error: BaseException) -> str:
    """Format an error as one line that every file and database accepts."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return clean_text(
        first if isinstance(error, WorkerError) else f"{type(error).__name__}: {first}"
    )


@contextmanager
def clean_raised_errors() -> Iterator[None]:
    """Clean the texts of errors raised in the block: Ray kills a process whose error is not
    Unicode.
    """
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if clean_text(text) == text:
            raise
        raise _clean_error(error) from None


def _clean_error(error: Exception) -> Exception:
    """Return the error without its chain, of the same type if that can hold a cleaned text."""
    if isinstance(error, WorkerError):
        return type(error)(*clean_texts(error.args))
    error.args = clean_texts(error.args)
    error.__cause__ = error.__context__ = None
    error.__notes__ = []
    return error if clean_text(str(error)) == str(error) else RuntimeError(format_error(error))


def format_with_line(error: BaseException) -> str:
    """Format an error as `Type: message (file.py:line)`, with the innermost line of user code, or
    the line that has a syntax error. An error of this project has no line of this project.
    """
    if isinstance(error, SyntaxError) and error.lineno and is_user_code(error.filename or "<"):
        file = Path(error.filename or "").name
        return f"{type(error).__name__}: {error.msg} ({file}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = isinstance(error, WorkerError) and not any(
        is_user_code(one.filename) for one in frames
    )
    line = "" if is_ours else find_user_line(frames)
    return f"{type(error).__name__}: {_join_lines(str(error))}" + (f" ({line})" if line else "")


def _join_lines(text: str) -> str:
    """Return the first line, with those that follow as far as there is room: some libraries say
    there what is wrong.
    """
    first, *others = [" ".join(line.split()) for line in text.strip().splitlines()] or [""]
    whole = " ".join([first, *filter(None, others)])
    most = max(len(first), _SHOWN)
    return whole if len(whole) <= most else f"{whole[:most]}..."


def find_user_line(frames: traceback.StackSummary) -> str:
    """Return `file.py:line` of the innermost user code or built-in task; else of the innermost
    frame, unless it is in Python's own import machinery.
    """
    own = [frame for frame in frames if is_user_code(frame.filename)] or [
        frame for frame in frames[-1:] if not frame.filename.startswith("<frozen ")
    ]
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
    return not file.is_relative_to(_LIBRARY)
