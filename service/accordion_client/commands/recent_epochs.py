"""Leaves out the lines of a watched job about epochs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accordion_client.commands.watch_state import StreamItem
from accordion_service.schemas.jobs import EventView


class RecentEpochs:
    """Leaves out what comes before the first event about epoch `first`, and counts the epochs.

    Events that are about no epoch are kept. Once that epoch was reached, nothing is left out: after
    a failure, a job trains earlier epochs again.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._num_left_out = 0
        self._is_reached = first == 0

    def select(self, event: StreamItem, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of an event that are shown, and before the first of them how many epochs
        were left out.
        """
        epoch = None if self._is_reached else _read_epoch(event)
        if epoch is not None and epoch < self._first:
            self._num_left_out += isinstance(event, EventView) and event.type == "epoch"
            return
        if epoch is not None:
            self._is_reached = True
            yield from self._describe_left_out()
        yield from lines

    def _describe_left_out(self) -> Iterator[str]:
        count = self._num_left_out
        if count:
            yield f"{count} earlier epoch{'' if count == 1 else 's'} left out; --all shows all"


def _read_epoch(event: StreamItem) -> int | None:
    """Return the epoch that an event is about; None for an event that is about no epoch."""
    match event:
        case EventView(type="epoch", data=data):
            return int(data["epoch"])
        case EventView(type="decision", data=data):
            return int(data["decision"]["epoch"])
    return None
