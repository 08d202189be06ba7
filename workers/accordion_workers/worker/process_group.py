"""The process group of a worker group, built on its store (`group_rendezvous.py`)."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from accordion_workers.spec.job import WorkersSpec

PEER_TIMEOUT = timedelta(seconds=60)
"""Timeout of a collective."""
_ended: list[dist.ProcessGroup] = []
"""Groups that have ended in this process and are not released yet."""
_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: the IPv4 address of an interface."""


def select_device(workers: WorkersSpec) -> str:
    """Return the device of a worker; Ray shows each process only the GPUs reserved for it."""
    return "cuda:0" if workers.gpus else "cpu"


@contextmanager
def process_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    device: str,
    host: str,
    timeout: timedelta = PEER_TIMEOUT,
) -> Iterator[None]:
    """Join a process group of all workers for the block: NCCL for GPUs, gloo for CPUs.

    `host` is this machine's address in the cluster, `timeout` that of a collective.

    Raises:
        RuntimeError: not all workers joined in time.
    """
    _listen_on(host)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(
            backend, store=store, timeout=timeout, rank=rank, world_size=world_size
        )
    except Exception:
        # torch counts groups that never formed and uses the count in the next group's name, which
        # a new process would not match.
        distributed_c10d._world.group_count = 0
        raise
    try:
        yield
    finally:
        # A user script may have destroyed the group itself.
        if dist.is_initialized():
            hold_groups()
            # Not through `dist`, where calls of user code are noted.
            distributed_c10d.destroy_process_group()


def hold_groups() -> None:
    """Keep the groups of this process, which are about to end, until `release_groups`."""
    _ended.extend(distributed_c10d._world.pg_map)


def release_groups() -> None:
    """Collect garbage, and close the sockets of groups that have ended.

    A group waits for its threads when it is freed, and a thread that drops a failed collective
    waits for the interpreter's lock. Freed as a Python object, the group does not hold that lock;
    freed by the DistributedDataParallel that used it, it would, and neither would ever go on.
    """
    gc.collect()
    _ended.clear()


def _listen_on(host: str) -> None:
    """Make gloo and NCCL use Ray's network interface; gloo's default is that of the host name."""
    interface = next((name for _, name in socket.if_nameindex() if _address_of(name) == host), None)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(
                probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15])
            )
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
