"""Memory of worker processes and their nodes, and who has to go before a node has none left; Linux.

Ray's memory monitor ends restartable actors first, the newest one first, however small they are: that is supervisors
and the Accordion actor before the worker that leaks. So workers are watched here, and the largest one of a node is
ended before Ray's monitor or the kernel has to choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.errors import OutOfMemory, ProcessLost, WorkerError

PRESSURE = 0.92
"""Part of a node's memory from which its largest worker is ended: Ray's monitor acts at 0.95."""
GUILTY_SHARE = 0.25
"""Part of a node's memory from which a worker that is ended for want of memory counts as the cause of it."""
_TITLE = b"ray::Worker"
"""Begin of the command line of our worker processes: Ray puts the actor's class there."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Version 2 and 1: folder, files of limit and use, and the part of the use that the kernel gives back when asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a worker process and its node use, in bytes."""

    process: int
    """Of the process and its children, memory shared with others left out."""
    node: int
    node_total: int
    is_largest: bool = False
    """No other worker process of the node uses more; looked at only while the node is short of memory."""

    @property
    def is_pressed(self) -> bool:
        """Whether the node is short of memory."""
        return self.node >= PRESSURE * self.node_total


def judge_memory(use: MemoryUse, limit: int | None) -> WorkerError | None:
    """Why a worker process has to be ended now; None where it has not."""
    if limit is not None and use.process > limit:
        return OutOfMemory(use.process, f"workers.memory is {limit / 1e9:.1f} GB")
    return _blame(use) if use.is_pressed and use.is_largest else None


def explain_death(use: MemoryUse) -> WorkerError | None:
    """The want of memory of which a process died that was ended by the kernel or by Ray; None where there was none."""
    return _blame(use) if use.is_pressed else None


def _blame(use: MemoryUse) -> WorkerError:
    node = f"its node used {use.node / 1e9:.1f} of {use.node_total / 1e9:.1f} GB"
    if use.process >= GUILTY_SHARE * use.node_total:
        return OutOfMemory(use.process, node)
    return ProcessLost(f"the process was ended for want of memory: it used {use.process / 1e9:.1f} GB, and {node}")


def read_memory_use(pid: int) -> MemoryUse | None:
    """What a process of this machine and its node use; None where the process is gone, or the system does not say."""
    try:
        used, total = _node_memory()
        use = MemoryUse(process=_tree_bytes(pid), node=used, node_total=total)
    except (OSError, ValueError, KeyError):
        return None
    if not use.is_pressed:
        return use
    largest = max(map(_tree_bytes, _worker_pids()), default=0)
    return MemoryUse(process=use.process, node=used, node_total=total, is_largest=use.process >= largest)


def _tree_bytes(pid: int) -> int:
    """Memory of a process and its children; 0 for one that is gone."""
    try:
        resident, shared = (Path(f"/proc/{pid}/statm").read_text().split()[n] for n in (1, 2))
        children = [int(child) for path in _tasks(pid) for child in path.read_text().split()]
    except (OSError, IndexError):
        return 0
    return (int(resident) - int(shared)) * _PAGE + sum(map(_tree_bytes, children))


def _tasks(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").glob("*/children")


def _worker_pids() -> Iterator[int]:
    """Worker processes of this machine, of whatever job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(_TITLE):
                yield int(folder.name)
        except OSError:
            continue


def _node_memory() -> tuple[int, int]:
    """Bytes in use and in all: the machine's, or the container's where it has a limit that is reached earlier."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    machine = (sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"])
    found = [pair for pair in map(_cgroup_memory, _CGROUPS) if pair is not None and pair[1] < machine[1]]
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


__all__ = ["GUILTY_SHARE", "PRESSURE", "MemoryUse", "explain_death", "judge_memory", "read_memory_use"]
