"""Peers of `tests.bench.accuracy` by their own code: PyTorch's DDP, its fp16 hook and its
post-local SGD, epfml's PowerSGD, and torchft's DDP and DiLoCo.

A peer has the model on which the loop calls forward and backward, and takes the step after it.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from tests.bench.peers_package import PackagePowerSGD, find_clone
from tests.netlab.lab import address

PATIENCE = timedelta(seconds=120)
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""Outer step of DiLoCo as published (arXiv:2311.08105): SGD with Nesterov momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a peer runs."""

    rank: int
    workers: int
    port: int
    """A free port on the first host, for a server that all workers call."""


class Peer:
    """Forward and backward on `module`, then `step`."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self.module, self._optimizer = module, optimizer

    def begin_step(self) -> None:
        """Prepare for the forward pass."""
        self._optimizer.zero_grad()

    def step(self) -> None:
        """Take the optimizer's step after the backward pass."""
        self._optimizer.step()

    def close(self) -> None:
        """End what the peer started."""


Maker = Callable[[nn.Module, Optimizer, Place], Peer]


def make_ddp(model: nn.Module, optimizer: Optimizer, place: Place) -> Peer:
    """DDP with its own settings, without the broadcast of buffers."""
    return Peer(DistributedDataParallel(model, broadcast_buffers=False), optimizer)


def make_half(model: nn.Module, optimizer: Optimizer, place: Place) -> Peer:
    """DDP with PyTorch's fp16 hook."""
    peer = make_ddp(model, optimizer, place)
    peer.module.register_comm_hook(None, fp16_compress_hook)
    return peer


def make_post_local_sgd(
    model: nn.Module, optimizer: Optimizer, place: Place, *, start_steps: int, period: int
) -> Peer:
    """PyTorch's post-local SGD: DDP for `start_steps`, then a mean of parameters each `period`."""
    alone = [dist.new_group([rank]) for rank in range(place.workers)][place.rank]
    ddp = make_ddp(model, optimizer, place).module
    state = PostLocalSGDState(
        process_group=None,
        subgroup=alone,
        start_localSGD_iter=start_steps,
        post_local_gradient_allreduce=False,
    )
    ddp.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=period, warmup_steps=start_steps)
    return Peer(ddp, PostLocalSGDOptimizer(optim=optimizer, averager=averager))


class Package(Peer):
    """epfml's package, both factors a step; the gradients keep the residual."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, place: Place) -> None:
        super().__init__(model, optimizer)
        self._package = PackagePowerSGD(list(model.parameters()), rank=4)

    def begin_step(self) -> None:
        """Leave the gradients, which hold the residual."""

    def step(self) -> None:
        """Average the gradients and take the step."""
        self._package.take_step(self._optimizer)


class Torchft(Peer):
    """A worker of torchft, which is a replica group of its own, and its servers."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, place: Place, *, sync_every: int | None
    ) -> None:
        super().__init__(model, optimizer)
        # It logs several lines a step, from Python and from Rust.
        logging.getLogger("torchft").setLevel(logging.ERROR)
        os.environ["RUST_LOG"] = "error"
        torchft: Any = importlib.import_module("torchft")
        own = address(place.rank + 1)
        self._lighthouse = None
        if place.rank == 0:
            self._lighthouse = importlib.import_module("torchft.coordination").LighthouseServer(
                bind=f"[::]:{place.port}", min_replicas=place.workers
            )
        dist.barrier()
        self._store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=PATIENCE),
            load_state_dict=lambda _: None,
            state_dict=dict,
            min_replica_size=place.workers,
            use_async_quorum=sync_every is None,
            init_sync=False,
            rank=0,
            world_size=1,
            store_addr=own,
            store_port=self._store.port,
            lighthouse_addr=f"http://{address(1)}:{place.port}",
            replica_id=f"worker-{place.rank}",
            hostname=own,
            timeout=PATIENCE,
            quorum_timeout=PATIENCE,
            connect_timeout=PATIENCE,
        )
        if sync_every is None:
            ddp = importlib.import_module("torchft.ddp").DistributedDataParallel
            self.module = ddp(self._manager, model, broadcast_buffers=False)
            self._optimizer = torchft.Optimizer(self._manager, optimizer)
        else:
            diloco = importlib.import_module("torchft.local_sgd").DiLoCo(
                self._manager,
                [model],
                optimizer,
                SGD(model.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True),
                sync_every,
                use_bucketization=True,
            )
            diloco.__enter__()

    def close(self) -> None:
        """End the servers."""
        dist.barrier()
        self._manager.shutdown(wait=False)
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _make_torchft(
    model: nn.Module, optimizer: Optimizer, place: Place, *, sync_every: int | None = None
) -> Peer:
    return Torchft(model, optimizer, place, sync_every=sync_every)


def _list_peers() -> dict[str, Maker]:
    peers: dict[str, Maker] = {
        "DDP": make_ddp,
        "DDP, fp16 hook": make_half,
        "PyTorch's post-local SGD, period 4": partial(
            make_post_local_sgd, start_steps=32, period=4
        ),
        "PyTorch's post-local SGD, 30 % start, period 15": partial(
            make_post_local_sgd, start_steps=144, period=15
        ),
    }
    if find_clone() is not None:
        peers["epfml's PowerSGD rank 4"] = Package
    if find_spec("torchft") is not None:
        peers["torchft's DDP"] = _make_torchft
        peers |= {
            f"torchft's DiLoCo, {steps} steps": partial(_make_torchft, sync_every=steps)
            for steps in (8, 15, 32, 60)
        }
    return peers


PEERS: Mapping[str, Maker] = _list_peers()
"""Peers by name, those whose code is installed: epfml's needs a clone, torchft's its package."""
