"""Where a bucket's exchange runs, so that it overlaps with the rest of the backward pass.

On CPUs: one thread that takes buckets in their order, with a process group of its own, so that its
collectives never mix with DDP's. On GPUs: a stream of its own; there collectives are asynchronous
by themselves. `Inline` runs at once.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.errors import HookError

Future = torch.futures.Future
_Job = tuple[Callable[[], None], Tensor, Any]
AT_EXIT_S = 0.2
"""What a process waits before it ends, so that gloo's threads are done with its last collectives.
"""


class Runner(Protocol):
    """Runs exchanges in the order in which they are given."""

    beside: bool
    """Whether the backward pass goes on meanwhile."""

    def submit(self, exchange: Callable[[], None], buffer: Tensor) -> Any:
        """A future of the buffer, done when the exchange that fills it is."""

    def check(self) -> None:
        """Raise the error of an exchange that failed after `submit` had returned."""


class Inline:
    """Runs an exchange where it is submitted; its errors are raised there."""

    beside = False

    def submit(self, exchange: Callable[[], None], buffer: Tensor) -> Any:
        """Implements `Runner`."""
        exchange()
        future: Any = Future()
        future.set_result(buffer)
        return future

    def check(self) -> None:
        """Implements `Runner`: errors were raised by `submit`."""


class OnThread:
    """Runs exchanges on one thread; after a failure it runs no more, and `check` raises the error.

    The error is not set on the future, because DDP would report it as "Unable to cast ... to
    Tensor".
    """

    beside = True

    def __init__(self, device: torch.device) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._device = device
        self._failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._failure = ""
        arguments = (self._jobs, self._failed, torch.get_num_threads())
        worker = threading.Thread(
            target=_work, args=arguments, name="accordion-exchange", daemon=True
        )
        worker.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, exchange: Callable[[], None], buffer: Tensor) -> Any:
        """Implements `Runner`. On a GPU the thread waits for the gradients on its stream, and DDP
        for the result.
        """
        if self._device.type != "cuda":
            future: Any = Future()
        else:
            ready = torch.cuda.current_stream(self._device).record_event()
            exchange, future = (
                partial(_after, ready, self._device, exchange),
                Future(devices=[self._device]),
            )
        self._jobs.put((exchange, buffer, future))
        return future

    def check(self) -> None:
        """Implements `Runner`."""
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


class OnStream:
    """Runs exchanges on a CUDA stream: the host only enqueues them, in the order of the buckets."""

    beside = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, exchange: Callable[[], None], buffer: Tensor) -> Any:
        """Implements `Runner`. DDP waits for the future's event on its own stream, not on
        the host.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        buffer.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            exchange()
            future: Any = Future(devices=[self._device])
            future.set_result(buffer)
        return future

    def check(self) -> None:
        """Implements `Runner`: errors were raised by `submit`."""


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend that serves tensors of a device.

    `init_process_group()` without a backend makes a group of several, such as `cpu:gloo,cuda:nccl`,
    for which `get_backend` returns "undefined".
    """
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    return backends.get(device.type, "none")


def own_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A process group with the same members, backend and timeout, for the exchange thread alone.

    DDP's own collectives, such as the map of used parameters, would otherwise run between ours, in
    an order that differs between the workers.
    """
    ranks = dist.get_process_group_ranks(group)
    backend, alone = dist.get_backend_config(group), len(ranks) == 1
    own: dist.ProcessGroup = dist.new_group(
        ranks, timeout=_timeout(group), backend=backend, use_local_synchronization=not alone
    )
    return own


def wait_at_exit() -> None:
    """Let this process wait a moment when it ends, before Python does; said again it waits no
    longer.

    The thread of gloo that ran a collective of the backward pass drops the pass's Python context
    when training already goes on (torch 2.13). Where it is late and Python is ending, it ends the
    process by SIGABRT, all work done.
    """
    atexit.unregister(_wait)
    atexit.register(_wait)


def _wait() -> None:
    time.sleep(AT_EXIT_S)


def _timeout(group: dist.ProcessGroup) -> Any:
    backend = group._get_backend(torch.device("cpu"))
    return backend.options._timeout


def _after(ready: Any, device: torch.device, exchange: Callable[[], None]) -> None:
    torch.cuda.set_device(device)
    torch.cuda.current_stream(device).wait_event(ready)
    exchange()


def _as_exception(error: BaseException) -> Exception:
    """The error, or where a future takes none of its kind, such as SystemExit, one that has it as
    its cause.
    """
    if isinstance(error, Exception):
        return error
    ended = HookError(f"the exchange of gradients was ended by {error!r}; start this worker again")
    ended.__cause__ = error
    return ended


def _without_frames(error: Exception) -> Exception:
    """The error and what led to it, less the tracebacks: their frames hold the hook, and so keep
    this thread alive.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _work(
    jobs: queue.SimpleQueue[_Job | None], failures: queue.SimpleQueue[Exception], threads: int
) -> None:
    torch.set_num_threads(threads)
    failed = False
    while (job := jobs.get()) is not None:
        exchange, buffer, future = job
        if not failed:
            try:
                exchange()
            except BaseException as error:  # noqa: BLE001 -- `check` raises it
                failures.put(_without_frames(_as_exception(error)))
                failed = True
        future.set_result(buffer)
        del job, exchange, buffer, future
