"""Gives this process a part of a processor's time, by a cgroup's quota; Linux, needs root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 10_000
"""The quota holds for each 10 ms, so that a step's time does not depend on where it begins."""
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def cpu_share(share: float) -> Iterator[None]:
    """Inside the block, this process gets at most this share of one processor's time; 1 is no
    limit.
    """
    if share >= 1.0:
        yield
        return
    quota_us = round(share * PERIOD_US)
    home = _find_home()
    is_v1 = (home / "cpu.cfs_quota_us").exists()
    group = home / f"accordion-bench-{os.getpid()}"
    group.mkdir()
    try:
        if is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _find_home() -> Path:
    """Return the folder of the cgroups; `ip netns exec` hides it, and then it is mounted again, for
    this process and its children only.
    """
    for home, file in ((_V1, "cpu.cfs_quota_us"), (_V2, "cgroup.procs")):
        if (home / file).exists():
            return home
    folder = Path(tempfile.mkdtemp(prefix="accordion-cgroup-"))
    for kind in (["cgroup", "-o", "cpu"], ["cgroup2"]):
        command = ["mount", "-t", kind[0], *kind[1:], "none", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return folder
    raise OSError("no cgroup hierarchy can be mounted; run this as root")
