"""Console that prints no control characters of others' texts."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from workers.plain_text import clean_for_terminal


class CleanConsole(Console):
    """Replaces control characters in all texts; its own colors and cursor movements stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; every text that is printed passes here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=clean_for_terminal(segment.text))
