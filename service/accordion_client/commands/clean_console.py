"""Console that prints no control characters of others' texts."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from accordion_workers.common.plain_text import clean_for_terminal

_FILLED = re.compile(r" +$", re.MULTILINE)


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

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; without a terminal, lines do not end in the blanks that fill a table."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_FILLED.sub("", captured.get()))
        self.file.flush()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; every text that is printed passes here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=clean_for_terminal(segment.text))
