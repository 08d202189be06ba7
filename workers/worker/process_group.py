"""The process group of a worker group, built on the store that its members joined
(`meeting.py`).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from workers.spec import WorkersSpec

PEER_TIMEOUT = timedelta(seconds=60)
"""How long a collective waits for a peer that says nothing."""
_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: the IPv4 address of an interface."""


def select_device(workers: WorkersSpec) -> str:
    """Where a worker computes: Ray lets each process see the GPUs that it reserved, and no
    others.
    """
    return "cuda:0" if workers.gpus else "cpu"


@contextmanager
def process_group(
    store: Store,
    place: tuple[int, int],
    *,
    device: str,
    host: str,
    timeout: timedelta = PEER_TIMEOUT,
) -> Iterator[None]:
    """Be in a process group with all workers while the block runs: NCCL between GPUs, gloo between
    CPUs.

    `place` is rank and world size, `host` this machine's address in the cluster, `timeout` that of
    a collective.

    Raises:
        RuntimeError: not all workers came.
    """
    _listen_on(host)
    rank, world_size = place
    backend = "nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(
            backend, store=store, timeout=timeout, rank=rank, world_size=world_size
        )
    except Exception:
        # torch counts groups that never formed, and names the next one by the count: it could meet
        # no newcomer.
        distributed_c10d._world.group_count = 0
        raise
    try:
        yield
    finally:
        # a script of the user's may have done it itself.
        if dist.is_initialized():
            # Not through `dist`, where calls of user code are noted.
            distributed_c10d.destroy_process_group()


def _listen_on(host: str) -> None:
    """Have gloo and NCCL use the interface that Ray uses: left alone, gloo takes what the machine's
    name stands for.
    """
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
