"""Executors that run exchanges of buckets in parallel with the rest of the backward pass.

On CPUs, one thread takes the exchanges in their order; it has a process group of its own, so that
its collectives never mix with DDP's. With NCCL, where collectives are asynchronous, exchanges run
on a CUDA stream of their own. `InlineExecutor` runs an exchange at once.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.base.errors import HookError, drop_tracebacks

Future = torch.futures.Future
PendingBuffer = tuple[Any, Tensor]
"""Future that DDP waits for, and the buffer that it gets."""
_Job = tuple[Callable[[], None], Sequence[PendingBuffer]]
AT_EXIT_S = 0.2
"""Seconds that a process waits at its exit for gloo's threads to finish the last collectives."""


class Executor(Protocol):
    """Runs exchanges in the order in which they are submitted."""

    is_parallel: bool
    """Whether the backward pass continues during an exchange."""
    can_be_timed: bool
    """Whether the host sees when an exchange begins and ends beside the backward pass."""

    def create_future(self) -> Any:
        """Return the future of a buffer whose gradients the current stream has computed."""

    def submit(self, exchange: Callable[[], None], pending: Sequence[PendingBuffer]) -> None:
        """Run an exchange that fills buffers, then set their futures."""

    def raise_failure(self) -> None:
        """Raise the error of an exchange that failed after `submit` had returned."""


class InlineExecutor:
    """Runs an exchange in the call of `submit`, which raises its errors."""

    is_parallel = False
    can_be_timed = False

    def create_future(self) -> Any:
        """Implements `Executor`."""
        return Future()

    def submit(self, exchange: Callable[[], None], pending: Sequence[PendingBuffer]) -> None:
        """Implements `Executor`."""
        exchange()
        _set_results(pending)

    def raise_failure(self) -> None:
        """Do nothing, because `submit` raised all errors."""


class ThreadExecutor:
    """Runs exchanges on one thread, until one fails; `raise_failure` raises the error.

    The error is not set on the future, because DDP would report it as "Unable to cast ... to
    Tensor".
    """

    is_parallel = True

    def __init__(self, device: torch.device) -> None:
        self.can_be_timed = device.type == "cpu"
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._device = device
        self._failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._failure = ""
        self._ready: list[Any] = []
        """Events of a GPU at which the buffers of the next exchange hold their gradients."""
        arguments = (self._jobs, self._failed, torch.get_num_threads())
        worker = threading.Thread(
            target=_run_jobs, args=arguments, name="accordion-exchange", daemon=True
        )
        worker.start()
        weakref.finalize(self, self._jobs.put, None)

    def create_future(self) -> Any:
        """Implements `Executor`; on a GPU, DDP's stream waits for the result."""
        if self._device.type != "cuda":
            return Future()
        self._ready.append(torch.cuda.current_stream(self._device).record_event())
        return Future(devices=[self._device])

    def submit(self, exchange: Callable[[], None], pending: Sequence[PendingBuffer]) -> None:
        """Implements `Executor`; on a GPU, the thread's stream waits for the gradients."""
        if self._device.type == "cuda":
            ready, self._ready = self._ready, []
            exchange = partial(_run_after, ready, self._device, exchange)
        self._jobs.put((exchange, pending))

    def raise_failure(self) -> None:
        """Implements `Executor`."""
        if self._failure:
            raise HookError(
                f"an earlier exchange of gradients failed ({self._failure}); restart this worker"
            )
        if self._failed.empty():
            return
        # Keep only the text: the traceback refers to the hook, which would keep the thread alive.
        error = self._failed.get()
        self._failure = f"{type(error).__name__}: {error}"
        error.add_note(
            "raised while gradients were exchanged in parallel with the backward pass; if a"
            " connection broke or timed out, another worker has exited or is blocked: see the other"
            " workers' logs"
        )
        raise error


class StreamExecutor:
    """Runs exchanges on a CUDA stream; the host only enqueues them, in the order of the buckets."""

    is_parallel = True
    can_be_timed = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def create_future(self) -> Any:
        """Implements `Executor`; DDP's stream, not the host, waits for the future's event."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return Future(devices=[self._device])

    def submit(self, exchange: Callable[[], None], pending: Sequence[PendingBuffer]) -> None:
        """Implements `Executor`."""
        for _, buffer in pending:
            buffer.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            exchange()
            _set_results(pending)

    def raise_failure(self) -> None:
        """Do nothing, because `submit` raised all errors."""


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend that serves tensors of a device.

    `init_process_group()` without a backend creates a group with several, such as
    `cpu:gloo,cuda:nccl`, for which `get_backend` returns "undefined".
    """
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    return backends.get(device.type, "none")


def create_exchange_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Create a process group for the exchange thread, with the same members, backend and timeout.

    In a shared group, DDP's own collectives, such as the map of used parameters, would run between
    those of the exchange, in an order that differs between the workers.
    """
    ranks = dist.get_process_group_ranks(group)
    backend, alone = dist.get_backend_config(group), len(ranks) == 1
    own: dist.ProcessGroup = dist.new_group(
        ranks, timeout=_group_timeout(group), backend=backend, use_local_synchronization=not alone
    )
    return own


def register_exit_delay() -> None:
    """Make this process wait for `AT_EXIT_S` when it exits; further calls add nothing.

    The gloo thread that ran a collective of the backward pass releases the pass's Python context
    after training has continued (torch 2.13). If it does so while Python shuts down, the process
    ends by SIGABRT although all work is done.
    """
    atexit.unregister(_delay_exit)
    atexit.register(_delay_exit)


def _delay_exit() -> None:
    time.sleep(AT_EXIT_S)


def _group_timeout(group: dist.ProcessGroup) -> Any:
    backend = group._get_backend(torch.device("cpu"))
    return backend.options._timeout


def _set_results(pending: Sequence[PendingBuffer]) -> None:
    for future, buffer in pending:
        future.set_result(buffer)


def _run_after(ready: Sequence[Any], device: torch.device, exchange: Callable[[], None]) -> None:
    torch.cuda.set_device(device)
    for event in ready:
        torch.cuda.current_stream(device).wait_event(event)
    exchange()


def _as_exception(error: BaseException) -> Exception:
    """Return the error, or a HookError caused by it if it is no Exception, such as SystemExit."""
    if isinstance(error, Exception):
        return error
    ended = HookError(f"{error!r} ended the exchange of gradients; restart this worker")
    ended.__cause__ = error
    return ended


def _run_jobs(
    jobs: queue.SimpleQueue[_Job | None], failures: queue.SimpleQueue[Exception], threads: int
) -> None:
    torch.set_num_threads(threads)
    failed = False
    while (job := jobs.get()) is not None:
        exchange, pending = job
        if not failed:
            try:
                exchange()
            except BaseException as error:  # noqa: BLE001 -- `raise_failure` raises it
                failures.put(drop_tracebacks(_as_exception(error)))
                failed = True
        _set_results(pending)
        del job, exchange, pending
