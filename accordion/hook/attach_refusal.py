"""Refusal of `attach` in a process that decides levels for the scripts it runs, as a job does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accordion.base.errors import HookError

_sentences: list[str] = []
"""Sentences of the blocks that are running, whichever thread runs them."""


@contextmanager
def refuse_attach(sentence: str) -> Iterator[None]:
    """Refuse `attach` without a decider, in all threads of this process, while the block runs.

    `sentence` says what to write instead.
    """
    _sentences.append(sentence)
    try:
        yield
    finally:
        _sentences.remove(sentence)


def check_not_refused() -> None:
    """Check that this process lets scripts call `attach`.

    Raises:
        HookError: it runs inside `refuse_attach`.
    """
    if _sentences:
        raise HookError(_sentences[-1])


__all__ = ["check_not_refused", "refuse_attach"]
