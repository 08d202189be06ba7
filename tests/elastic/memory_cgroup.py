"""A memory cgroup of its own for a node of a test cluster, as a container has it; Linux, needs
root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.elastic.conftest import wait_for

_ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""cgroup v1 and v2: folder of the hierarchy, and file with a group's limit."""
_JOIN = 'echo $$ > "$1/cgroup.procs" && mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class MemoryCgroup:
    folder: Path
    root: Path

    def command_prefix(self) -> Sequence[str]:
        """Words before a command that put it into the group and show it nothing of other groups."""
        return ["unshare", "--mount", "sh", "-c", _JOIN, "sh", str(self.folder), str(self.root)]


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup | None]:
    """Make a group with this limit; give None where this process may not."""
    made = next(filter(None, (_made(*place, limit_bytes) for place in _ROOTS)), None)
    try:
        yield made
    finally:
        if made is not None:
            wait_for(lambda: _is_removed(made.folder))


def _made(root: Path, limit_file: str, limit_bytes: int) -> MemoryCgroup | None:
    folder = root / f"accordion-test-{os.getpid()}"
    with suppress(OSError):
        folder.mkdir()
        try:
            (folder / limit_file).write_text(str(limit_bytes))
        except OSError:
            folder.rmdir()
            raise
        return MemoryCgroup(folder=folder, root=root)
    return None


def _is_removed(folder: Path) -> bool:
    """Whether the group is gone; one that still has processes stays."""
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()
