"""The process group of a worker group, made inside the workers.

Ray's own Torch backend would do the same, but it makes the supervisor and the Train controller import torch as well,
one after the other: five seconds of a start on a small machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from workers.spec import WorkersSpec

PEER_TIMEOUT = timedelta(seconds=60)
"""How long a collective waits for a peer that says nothing."""


def device_of(workers: WorkersSpec) -> str:
    """Where a worker computes: Ray lets each process see the GPUs that it reserved, and no others."""
    return "cuda:0" if workers.gpus else "cpu"


@contextmanager
def process_group(rank: int, world_size: int, *, device: str) -> Iterator[None]:
    """Be in a process group with all workers while the block runs: NCCL between GPUs, gloo between CPUs."""
    from ray.train.collective import broadcast_from_rank_zero

    address = broadcast_from_rank_zero(_free_address() if rank == 0 else None)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(
        backend, init_method=f"tcp://{address}", timeout=PEER_TIMEOUT, rank=rank, world_size=world_size
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _free_address() -> str:
    """An address of this machine that its peers reach, with a port that is free now."""
    import ray.util

    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
