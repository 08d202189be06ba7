"""Memory limits of worker processes, and which one is killed before its node runs out; Linux.

Ray's memory monitor kills restartable actors first, newest first, whatever their size: supervisors
and the Accordion actor before the worker that leaks. Workers are therefore watched here, and the
largest one on a node is killed before Ray's monitor or the kernel has to choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import psutil

from accordion_workers.common.errors import OutOfMemory, ProcessLost, WorkerError

PRESSURE = 0.92
"""Share of a node's memory in use from which its largest worker is killed; Ray acts at 0.95."""
GUILTY_SHARE = 0.25
"""Share of a node's memory from which a killed worker counts as the cause of the shortage."""
SHORTAGE_GRACE_S = 5.0
"""How long memory must be short before a process is killed that is too small to be the cause: a
large one that was just killed, perhaps of another job, takes seconds to give its memory back.
"""
RELIEF_SHARE = 0.02
"""Share of a node's memory by which its use must fall to count as memory that a killed process
gives back.
"""
MAX_READINGS = 64
"""Readings kept of a process; every second one goes when there are more."""
MIN_READINGS = 4
"""Readings from which growth is judged."""
MIN_GROWTH = 0.1
"""Share of a process's memory by which it must have grown to count as growing."""
MAX_JUMP = 0.5
"""Share of the growth that may lie between two readings: a large batch takes its memory at once."""
_TITLE = "ray::Worker"
"""Start of a worker process's command line, where Ray puts the actor's class."""
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""cgroup v2 and v1: folder, files with limit and use, and the reclaimable part of the use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory use of a worker process and its node, in bytes."""

    process: int
    """Use of the process and its children, without memory shared with others."""
    node: int
    node_total: int
    is_largest: bool = False
    """No other worker process on the node uses more; determined only while memory is short."""

    @property
    def is_pressed(self) -> bool:
        """Whether the node is short of memory."""
        return self.node >= PRESSURE * self.node_total

    @property
    def is_guilty(self) -> bool:
        """Whether the process is large enough to be the cause of a shortage."""
        return self.process >= GUILTY_SHARE * self.node_total


@dataclass(slots=True)
class MemoryGrowth:
    """Memory readings of one process while it trains, at most one per step, evenly thinned."""

    readings: list[tuple[float, int]] = field(default_factory=list)
    """Time in seconds and bytes used, oldest first."""
    _step: int | None = None
    """Step of the newest reading; None before the first."""

    def add(self, step: int, at_s: float, used: int) -> None:
        """Append a reading unless the step already has one; thin out the older ones if there are
        too many.
        """
        if self._step is not None and step <= self._step:
            return
        self._step = step
        if len(self.readings) == MAX_READINGS:
            del self.readings[1::2]
        self.readings.append((at_s, used))

    def bytes_per_s(self) -> float:
        """Return how fast the use grew; 0 if it did not, or did so at once."""
        if len(self.readings) < MIN_READINGS:
            return 0.0
        (begin_s, first), (end_s, last) = self.readings[0], self.readings[-1]
        used = [reading[1] for reading in self.readings]
        grown, jump = last - first, max(after - before for before, after in pairwise(used))
        is_steady = grown >= MIN_GROWTH * last and jump <= MAX_JUMP * grown
        return grown / (end_s - begin_s) if is_steady else 0.0


@dataclass(slots=True)
class MemoryWatch:
    """Memory of one process, and whether the process must be killed for it."""

    latest: MemoryUse | None = None
    """Newest reading."""
    read_s: float = -math.inf
    """Time of the newest attempt to read, in seconds."""
    growth: MemoryGrowth = field(default_factory=MemoryGrowth)
    """Readings while the process trains in the newest group."""
    _short_since_s: float | None = None
    """Since when the node has been short of memory without relief; None if the newest reading shows
    enough.
    """
    _peak: int = 0
    """Highest use of the node since then."""

    def add(self, at_s: float, use: MemoryUse | None) -> None:
        """Add a reading; None if there was nothing to read."""
        self.read_s = at_s
        if use is None:
            return
        self.latest = use
        if not use.is_pressed:
            self._short_since_s = None
        elif self._short_since_s is None or self._peak - use.node >= RELIEF_SHARE * use.node_total:
            self._short_since_s, self._peak = at_s, use.node
        else:
            # The largest of several equal ranks changes with every reading, so it is ignored here.
            self._peak = max(self._peak, use.node)

    def expect_relief(self, now_s: float) -> None:
        """Grant the process another `SHORTAGE_GRACE_S`: a process on its node was killed for its
        memory.
        """
        if self._short_since_s is not None:
            self._short_since_s = now_s

    def judge(self, limit: int | None) -> WorkerError | None:
        """Return why the process must be killed now; None if it need not be."""
        if self.latest is None:
            return None
        use, growth = self.latest, self.growth.bytes_per_s()
        if limit is not None and use.process > limit:
            used, allowed = _in_gb(use.process, limit)
            return OutOfMemory(f"{used} GB; workers.memory is {allowed} GB", growth)
        if self._short_since_s is None or not use.is_largest:
            return None
        has_lasted = self.read_s - self._short_since_s >= SHORTAGE_GRACE_S
        return _explain_shortage(use, growth) if use.is_guilty or has_lasted else None

    def explain_death(self) -> WorkerError | None:
        """Return the memory shortage that explains the process's death; None if there was none."""
        if self.latest is None or not self.latest.is_pressed:
            return None
        return _explain_shortage(self.latest, self.growth.bytes_per_s())


def _explain_shortage(use: MemoryUse, bytes_per_s: float) -> WorkerError:
    process, (node, total) = f"{use.process / 1e9:.1f} GB", _in_gb(use.node, use.node_total)
    shortage = f"its node used {node} of {total} GB"
    if use.is_guilty:
        return OutOfMemory(f"{process}; {shortage}", bytes_per_s)
    return ProcessLost(
        f"the process was killed because memory ran out: it used {process}, and {shortage}"
    )


def _in_gb(first: int, second: int) -> tuple[str, str]:
    """Format two sizes with at least one digit, and as many as needed to distinguish them."""
    digits = next((n for n in range(1, 9) if round(first / 1e9, n) != round(second / 1e9, n)), 9)
    return f"{first / 1e9:.{digits}f}", f"{second / 1e9:.{digits}f}"


def read_memory_use(pid: int) -> MemoryUse | None:
    """Read the use of a local process and its node; None if it cannot be read."""
    try:
        used, total = _node_memory()
        use = MemoryUse(process=_tree_bytes(pid), node=used, node_total=total)
    except (OSError, psutil.Error):
        return None
    if not use.is_pressed:
        return use
    # Not read a second time: a process that grows would never be the largest.
    largest_other = max((_tree_bytes(other) for other in _worker_pids() if other != pid), default=0)
    return replace(use, is_largest=use.process >= largest_other)


def _tree_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; 0 if it is gone."""
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(map(_own_bytes, tree))


def _own_bytes(process: psutil.Process) -> int:
    """Return the memory of a process that it shares with no other, as far as the system tells."""
    try:
        use = process.memory_info()
    except psutil.Error:
        return 0
    return int(use.rss) - int(getattr(use, "shared", 0))


def _worker_pids() -> Iterator[int]:
    """Yield the ids of this machine's worker processes, of all jobs."""
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith(_TITLE):
            yield process.pid


def _node_memory() -> tuple[int, int]:
    """Return bytes used and total: the machine's, or the container's if it is closer to its
    limit.
    """
    memory = psutil.virtual_memory()
    machine = (int(memory.total - memory.available), int(memory.total))
    found = [
        pair for pair in map(_cgroup_memory, _CGROUPS) if pair is not None and pair[1] < machine[1]
    ]
    return max([machine, *found], key=lambda pair: pair[0] / pair[1])


def _cgroup_memory(files: tuple[str, str, str, str]) -> tuple[int, int] | None:
    folder, limit, current, reclaimable = files
    try:
        total = int(Path(folder, limit).read_text())
        used = int(Path(folder, current).read_text())
        lines = Path(folder, "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    stat: Mapping[str, str] = dict(line.split() for line in lines)
    return used - int(stat.get(reclaimable, 0)), total


__all__ = [
    "GUILTY_SHARE",
    "MAX_READINGS",
    "PRESSURE",
    "SHORTAGE_GRACE_S",
    "MemoryGrowth",
    "MemoryUse",
    "MemoryWatch",
    "read_memory_use",
]
