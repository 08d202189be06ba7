"""Groups of real gloo processes, kept warm between tests."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.process_end import end_with_parent

MOST_PROCESSES = 4
PEER_TIMEOUT = timedelta(seconds=60)
"""After this long a process whose peer failed gives up."""

RunGroup = Callable[..., list[Any]]


def _in_group(
    rank: int, world_size: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=PEER_TIMEOUT,
    )
    # A process that is done before its peers have connected would close their connections.
    dist.barrier()
    try:
        return function(rank, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Threads of a group that garbage refers to look for work 100 times a second.
        gc.collect()


def _prepare_process() -> None:
    end_with_parent()
    gc.freeze()  # torch's own objects, through which each later collection would go


@pytest.fixture(scope="session")
def run_group() -> Iterator[RunGroup]:
    """`run_group(W, function, *arguments)` runs `function(rank, *arguments)` in W processes;
    results in rank order.
    """
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(
            MOST_PROCESSES, mp_context=context, initializer=_prepare_process
        ) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):

        def run(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
            store = Path(tempfile.mkdtemp(dir=folder)) / "store"
            futures = [
                pool.submit(_in_group, rank, world_size, str(store), function, arguments)
                for rank in range(world_size)
            ]
            # where one has failed, the next group must not meet a process that still waits for it.
            wait(futures, timeout=2 * PEER_TIMEOUT.total_seconds())
            return [future.result(timeout=0) for future in futures]

        yield run
