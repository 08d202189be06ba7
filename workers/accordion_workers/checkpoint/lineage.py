"""Which checkpoints a job may resume from: those on the surviving line of its worker groups; pure.

Every worker group records, before its first step, the checkpoint that it resumed from. The line is
followed back from the newest group: its own checkpoints, the checkpoint that it resumed from, older
checkpoints of the group that saved that one, and so on. Every other checkpoint in the storage was
saved by a group that had been given up. It may appear late: an object store can complete a write
after the next group has begun to train.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from accordion_workers.records.contract import Record
from accordion_workers.records.milestones import Milestones, find_milestones

_NAME = re.compile(r"g(\d{12})-e\d{6}-s\d{10}")

SurvivorFilter = Callable[[Iterable[str]], list[str]]
"""Selects the names of checkpoints on the surviving line, the newest first."""


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A worker group that began to train."""

    generation: int
    resumed_from: str | None
    """Name of the checkpoint, or of the state in the workers' memory; None if training began from
    scratch.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Worker groups and epochs in a job's records; without records, every checkpoint may be
    used.
    """

    groups: tuple[StartedGroup, ...] = ()
    """Oldest first."""
    epochs: frozenset[int] = frozenset()
    """Epochs that the history holds."""
    saved_step: int = 0
    """Steps held by the newest checkpoint on the line."""

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        """Build the lineage from a job's records, in order."""
        return cls.of_milestones(find_milestones(records))

    @classmethod
    def of_milestones(cls, milestones: Iterable[Milestones]) -> Self:
        """Build the lineage from the milestones of a job's generations, in order; a new group
        voids the epochs it repeats.
        """
        groups: list[StartedGroup] = []
        epochs: set[int] = set()
        saved_step = 0
        for row in milestones:
            if (start := row.started) is not None:
                groups.append(StartedGroup(row.generation, start.resumed_from))
                epochs = {epoch for epoch in epochs if epoch < start.epoch}
                saved_step = min(saved_step, start.step) if start.from_memory else start.step
            epochs.update(row.epochs)
            saved_step = max(saved_step, row.saved_step)
        return cls(groups=tuple(groups), epochs=frozenset(epochs), saved_step=saved_step)

    def begin(self, generation: int, resumed_from: str | None) -> Lineage:
        """Return the lineage extended by a new group."""
        return Lineage(
            groups=(*self.groups, StartedGroup(generation, resumed_from)), epochs=self.epochs
        )

    def survivors(self, names: Iterable[str]) -> list[str]:
        """Return the names of checkpoints on the line, the newest first."""
        ordered = newest_first(names)
        if not self.groups:
            return ordered
        return list(dict.fromkeys(self._walk_back(ordered)))

    def missing_epochs(self, epoch: int) -> list[int]:
        """Return the epochs before this one that the history lacks; empty without any records."""
        return (
            [number for number in range(epoch) if number not in self.epochs] if self.groups else []
        )

    def _walk_back(self, ordered: Sequence[str]) -> Iterator[str]:
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
    """Sort names of checkpoints, the newest first; used if the job has no records."""
    return sorted(names, reverse=True)


def generation_of(name: str) -> int | None:
    """Return the generation that saved a checkpoint; None if the name is not a checkpoint's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


__all__ = ["Lineage", "StartedGroup", "SurvivorFilter", "generation_of", "newest_first"]
