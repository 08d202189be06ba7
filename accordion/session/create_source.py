"""Choice of the source of a session's gradients, by what was attached to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork
from accordion.compress.executors import (
    Executor,
    InlineExecutor,
    StreamExecutor,
    ThreadExecutor,
    backend_name,
    create_exchange_group,
    register_exit_delay,
)
from accordion.compress.step_signals import Signal
from accordion.config import BucketsPerExchange
from accordion.hook.ddp_source import DdpSource
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.fsdp_source import FsdpSource
from accordion.hook.gradient_source import GradientSource
from accordion.hook.module_checks import device_of
from accordion.hook.sharded_module import shard_group
from accordion.hook.simulated_module import SimulatedDataParallel
from accordion.hook.simulated_source import SimulatedSource
from accordion.hook.unwrapped_source import UnwrappedSource
from accordion.session.optimizer_steps import OptimizerSteps


def create_source(
    module: nn.Module,
    engine: Engine,
    steps: OptimizerSteps,
    *,
    raised: Callable[[], frozenset[Signal]],
    pass_skipped_step: Callable[[Tensor], bool],
    overlap: bool,
    buckets_per_exchange: BucketsPerExchange,
    replicate_group: dist.ProcessGroup | None,
) -> GradientSource:
    """Return the source of a module's gradients, with a scheduler of their exchanges if there are
    peers.

    Raises:
        HookError: the module has a session already.
    """
    if isinstance(module, SimulatedDataParallel):
        exchanges = ExchangeScheduler(
            engine,
            module.network,
            InlineExecutor(),
            raised=raised,
            # As processes begin, before they have measured their link.
            buckets_per_exchange=1 if buckets_per_exchange == "auto" else buckets_per_exchange,
        )
        return SimulatedSource(module, engine, exchanges, loss_scale=steps.read_scale)
    group = module.process_group if isinstance(module, DistributedDataParallel) else replicate_group
    if group is None:
        return UnwrappedSource(
            module,
            engine,
            raised,
            loss_scale=steps.read_scale,
            unscale=steps.unscale_gradients,
        )

    def create_exchanges() -> ExchangeScheduler:
        register_exit_delay()
        network, executor = _connect(group, device_of(module), overlap=overlap)
        return ExchangeScheduler(
            engine, network, executor, raised=raised, buckets_per_exchange=buckets_per_exchange
        )

    loop: dict[str, Any] = {
        "loss_scale": steps.read_scale,
        "step_call": steps.step_call,
        "pass_skipped_step": pass_skipped_step,
        "create_exchanges": create_exchanges,
    }
    if isinstance(module, DistributedDataParallel):
        return DdpSource(module, engine, **loop)
    source = FsdpSource(module, engine, **loop)
    shards = create_exchange_group(shard_group(module))
    engine.combine_signals = GroupNetwork(shards, device_of(module)).all_reduce_mean_
    return source


def _connect(
    group: dist.ProcessGroup, device: torch.device, *, overlap: bool
) -> tuple[GroupNetwork, Executor]:
    """Return the network of a group's exchanges, and what runs them; exchanges in parallel with
    the backward pass on CPUs get a process group of their own.
    """
    if not overlap:
        return GroupNetwork(group, device), InlineExecutor()
    if device.type == "cuda" and backend_name(group, device) == "nccl":
        return GroupNetwork(group, device), StreamExecutor(device)
    return GroupNetwork(create_exchange_group(group), device), ThreadExecutor(device)
