"""Which checkpoints a job may resume from: those on the surviving line of its worker groups; pure.

Every worker group records, before its first step, the checkpoint that it resumed from. The line runs back from the
newest group: its own checkpoints, the one that it resumed from, older ones of the group that saved that one, and so on.
Whatever else lies in the storage was saved by a group that was given up, perhaps long after it was: an object store may
complete a write when the next group already trains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from workers.contract import CheckpointRecord, EpochRecord, Record, Started

_NAME = re.compile(r"g(\d{12})-e\d{6}-s\d{10}")


Survivors = Callable[[Iterable[str]], list[str]]
"""Picks from the names of checkpoints those on the surviving line, the newest first."""


@dataclass(frozen=True, slots=True)
class Group:
    """A worker group that began to train."""

    generation: int
    resumed_from: str | None
    """Name of the checkpoint; None where it began from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a job's records say about its past. Without any record nothing is known, and every checkpoint is allowed."""

    groups: tuple[Group, ...] = ()
    """Oldest first."""
    epochs: frozenset[int] = frozenset()
    """Epochs that the history holds."""
    saved_step: int = 0
    """Steps held by the newest checkpoint on the line."""

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        """Replay a job's records, which are in order: a group that starts voids the epochs it trains again."""
        groups: list[Group] = []
        epochs: set[int] = set()
        saved_step = 0
        for record in records:
            match record.payload:
                case Started() as started:
                    groups.append(Group(record.generation, started.resumed_from))
                    epochs = {epoch for epoch in epochs if epoch < started.epoch}
                    saved_step = started.step
                case EpochRecord(epoch=epoch):
                    epochs.add(epoch)
                case CheckpointRecord(step=step):
                    saved_step = max(saved_step, step)
        return cls(groups=tuple(groups), epochs=frozenset(epochs), saved_step=saved_step)

    def begin(self, generation: int, resumed_from: str | None) -> Lineage:
        """Return the lineage as of the first step of another group."""
        return Lineage(groups=(*self.groups, Group(generation, resumed_from)), epochs=self.epochs)

    def survivors(self, names: Iterable[str]) -> list[str]:
        """Checkpoints on the line, the newest first."""
        ordered = newest_first(names)
        if not self.groups:
            return ordered
        return list(dict.fromkeys(self._follow_back(ordered)))

    def missing_epochs(self, epoch: int) -> list[int]:
        """Epochs before this one that the history does not hold; none where there is no history to compare with."""
        return [number for number in range(epoch) if number not in self.epochs] if self.groups else []

    def _follow_back(self, ordered: Sequence[str]) -> Iterator[str]:
        resumed_from = {group.generation: group.resumed_from for group in self.groups}
        generation: int | None = self.groups[-1].generation
        newest: str | None = None
        seen: set[int] = set()
        while generation is not None and generation not in seen:
            seen.add(generation)
            own = (name for name in ordered if generation_of(name) == generation)
            yield from (name for name in own if newest is None or name <= newest)
            newest = resumed_from.get(generation)
            generation = generation_of(newest) if newest is not None else None


def newest_first(names: Iterable[str]) -> list[str]:
    """Order names of checkpoints where nothing is known of the job's past."""
    return sorted(names, reverse=True)


def generation_of(name: str) -> int | None:
    """Generation of the worker group that saved a checkpoint; None where the name is no checkpoint's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


__all__ = ["Group", "Lineage", "Survivors", "generation_of", "newest_first"]
