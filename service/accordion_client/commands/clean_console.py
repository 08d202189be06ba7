"""Console that prints no control characters of others' texts."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from accordion_workers.common.plain_text import clean_for_terminal


class CleanConsole(Console):
    """Replaces control characters in all texts; its own colors and cursor movements stay. A closed
    pipe is left to the command, as for other output; rich would end with code 1.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Raise what any other output to a closed pipe raises.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; every text that is printed passes here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=clean_for_terminal(segment.text))
