"""Groups of real gloo processes, kept warm between tests."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accordion_workers.worker.process_group import hold_groups, release_groups
from tests.process_end import end_with_session

MOST_PROCESSES = 4
PRELOADED = [
    "torch._dynamo",
    "sklearn.datasets",
    "accordion_workers.training.loop",
    "tests.distributed.code_jobs",
]
"""What one process imports for all that it forks; a first step takes the compiler of torch too."""
PEER_TIMEOUT = timedelta(seconds=60)
"""After this long a process whose peer failed gives up."""

RunGroup = Callable[..., list[Any]]
RunNew = Callable[..., list[Any]]
RunGrid = Callable[..., list[Any]]


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
            hold_groups()
            dist.destroy_process_group()
        # Threads of a group that garbage refers to look for work 100 times a second. What is left
        # is frozen: later collections would go through it, a tenth of the time of all tests.
        release_groups()
        gc.freeze()


class _Processes:
    """A pool that is replaced when one of its processes has crashed, so that one test fails for it
    and not all that follow.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pool = _create_pool()

    def run(self, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        store = Path(tempfile.mkdtemp(dir=self._folder)) / "store"
        futures = [
            self._pool.submit(_in_group, rank, world_size, str(store), function, arguments)
            for rank in range(world_size)
        ]
        # where one has failed, the next group must not meet a process that still waits for it.
        wait(futures, timeout=2 * PEER_TIMEOUT.total_seconds())
        try:
            return [future.result(timeout=0) for future in futures]
        except BrokenProcessPool:
            self.end()
            self._pool = _create_pool()
            raise

    def end(self) -> None:
        self._pool.shutdown()


def _create_pool(processes: int = MOST_PROCESSES) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=_forkserver(), initializer=end_with_session)


def _forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.fixture(scope="session")
def run_group() -> Iterator[RunGroup]:
    """`run_group(W, function, *arguments)` runs `function(rank, *arguments)` in W processes;
    results in rank order.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = _Processes(folder)
        yield processes.run
        processes.end()


@pytest.fixture(scope="session")
def run_new() -> RunNew:
    """`run_new(W, function, *arguments)` runs `function(rank, *arguments)` in W new processes
    without a group; results in rank order.
    """

    def run(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        task = functools.partial(_in_new, dict(os.environ), function, arguments)
        context = _forkserver()
        # It ends its processes, also one that waits for a peer that has failed.
        with context.Pool(world_size, initializer=end_with_session) as pool:
            found = pool.imap_unordered(task, range(world_size))
            results = dict(found.next(timeout=200) for _ in range(world_size))
        return [results[rank] for rank in range(world_size)]

    return run


@pytest.fixture(scope="module")
def run_grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunGrid]:
    """`run_grid(function, *arguments)` runs `function(rank, *arguments)` in four processes.

    Their process group lives as long as they do: DTensor remembers meshes by their ranks, and a
    second group of the same ranks would meet those of the first.
    """
    pools = [_create_pool(1) for _ in range(MOST_PROCESSES)]
    store = tmp_path_factory.mktemp("grid") / "store"

    def run(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        given = enumerate(pools)
        futures = [pool.submit(_in_grid, rank, store, function, arguments) for rank, pool in given]
        return [future.result(timeout=120) for future in futures]

    yield run
    for pool in pools:
        pool.shutdown()


def _in_new(
    environment: dict[str, str], function: Callable[..., Any], arguments: Any, rank: int
) -> tuple[int, Any]:
    os.environ |= environment  # processes are forked from one that is older than the test
    torch.set_num_threads(1)
    return rank, function(rank, *arguments)


def _in_grid(rank: int, store: Path, function: Callable[..., Any], arguments: Any) -> Any:
    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=MOST_PROCESSES
        )
    return function(rank, *arguments)
