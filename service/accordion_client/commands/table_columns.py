"""Fits tables to the width of a terminal; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MIN_WRAPPED_WIDTH = 40
"""Minimum width of a column that is wrapped, in characters; others are left out to make room."""
_GAP = 2
"""Spaces between two columns."""


def drop_columns(widths: Mapping[str, int], less_important: Sequence[str], width: int) -> list[str]:
    """Return the columns for which a line has room.

    Args:
        widths: characters of each column, in order.
        less_important: columns to leave out, the first of these first.
        width: characters of a line.
    """
    shown = dict(widths)
    for column in less_important:
        if sum(shown.values()) + _GAP * (len(shown) - 1) > width:
            shown.pop(column, None)
    return list(shown)
