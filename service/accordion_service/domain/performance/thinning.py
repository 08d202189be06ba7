"""Chooses the part of a long history that charts show; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
Position = tuple[int, int]
"""Epoch and step."""


def thin_evenly(items: Sequence[Item], limit: int) -> list[Item]:
    """Return at most `limit` items at equal distances; the first and the last are among them.

    Args:
        items: all items, in order.
        limit: most items to return, at least 2.
    """
    if len(items) <= limit:
        return list(items)
    last = len(items) - 1
    return [items[round(index * last / (limit - 1))] for index in range(limit)]


def choose_epochs(numbers: Sequence[int], changed: Sequence[int], limit: int) -> list[int]:
    """Return at most `limit` of the epochs: up to half of them where levels may have changed, the
    others at equal distances; the first and the last are among them.

    Args:
        numbers: numbers of all epochs, in order.
        changed: epochs with a decision, in order.
        limit: most epochs to return, at least 4.
    """
    if len(numbers) <= limit:
        return list(numbers)
    begun = set(thin_evenly(sorted(set(changed).intersection(numbers)), limit // 2))
    others = [number for number in numbers if number not in begun]
    return sorted([*begun, *thin_evenly(others, limit - len(begun))])


def choose_in_force(starts: Sequence[Position], ends: Sequence[Position]) -> list[Position]:
    """Return the decisions that were in force at the end of some epochs, each once.

    Args:
        starts: first epoch and step of each decision, in order.
        ends: each epoch, and its last step.
    """
    places = (bisect_right(starts, end) - 1 for end in ends)
    return [starts[place] for place in dict.fromkeys(places) if place >= 0]
